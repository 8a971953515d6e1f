"""What `dsec` exports, for type checkers; `__init__.py` imports each name when it is first used."""

from dsec.base.errors import (
    AlreadyExistsError as AlreadyExistsError,
)
from dsec.base.errors import (
    BackendFailedError as BackendFailedError,
)
from dsec.base.errors import (
    BackendRefusedError as BackendRefusedError,
)
from dsec.base.errors import (
    BackendTimeoutError as BackendTimeoutError,
)
from dsec.base.errors import (
    BodyTooLargeError as BodyTooLargeError,
)
from dsec.base.errors import (
    BudgetExhaustedError as BudgetExhaustedError,
)
from dsec.base.errors import (
    BuildFailedError as BuildFailedError,
)
from dsec.base.errors import (
    CallerError as CallerError,
)
from dsec.base.errors import (
    CapabilityMissingError as CapabilityMissingError,
)
from dsec.base.errors import (
    CommandNotFoundError as CommandNotFoundError,
)
from dsec.base.errors import (
    ConflictError as ConflictError,
)
from dsec.base.errors import (
    DeadlineExceededError as DeadlineExceededError,
)
from dsec.base.errors import (
    DirectoryNotEmptyError as DirectoryNotEmptyError,
)
from dsec.base.errors import (
    DsecError as DsecError,
)
from dsec.base.errors import (
    ExternalCommandError as ExternalCommandError,
)
from dsec.base.errors import (
    GatewayBusyError as GatewayBusyError,
)
from dsec.base.errors import (
    GuestError as GuestError,
)
from dsec.base.errors import (
    HookFailedError as HookFailedError,
)
from dsec.base.errors import (
    HostDiskFullError as HostDiskFullError,
)
from dsec.base.errors import (
    HostOutOfMemoryError as HostOutOfMemoryError,
)
from dsec.base.errors import (
    ImageNotFoundError as ImageNotFoundError,
)
from dsec.base.errors import (
    ImagesConflictError as ImagesConflictError,
)
from dsec.base.errors import (
    InvalidRequestError as InvalidRequestError,
)
from dsec.base.errors import (
    InvalidStateError as InvalidStateError,
)
from dsec.base.errors import (
    IsADirectoryInSandboxError as IsADirectoryInSandboxError,
)
from dsec.base.errors import (
    LimitExceededError as LimitExceededError,
)
from dsec.base.errors import (
    LogSuspectError as LogSuspectError,
)
from dsec.base.errors import (
    MigrationFailedError as MigrationFailedError,
)
from dsec.base.errors import (
    ModelUnavailableError as ModelUnavailableError,
)
from dsec.base.errors import (
    NodeUnavailableError as NodeUnavailableError,
)
from dsec.base.errors import (
    NotADirectoryInSandboxError as NotADirectoryInSandboxError,
)
from dsec.base.errors import (
    NotFoundError as NotFoundError,
)
from dsec.base.errors import (
    ObjectNotFoundError as ObjectNotFoundError,
)
from dsec.base.errors import (
    OutsideUnavailableError as OutsideUnavailableError,
)
from dsec.base.errors import (
    PathNotFoundError as PathNotFoundError,
)
from dsec.base.errors import (
    PermissionDeniedError as PermissionDeniedError,
)
from dsec.base.errors import (
    PlatformError as PlatformError,
)
from dsec.base.errors import (
    ProcessNotFoundError as ProcessNotFoundError,
)
from dsec.base.errors import (
    RateLimitedError as RateLimitedError,
)
from dsec.base.errors import (
    RecordingMissError as RecordingMissError,
)
from dsec.base.errors import (
    RuntimeFailedError as RuntimeFailedError,
)
from dsec.base.errors import (
    SandboxDiskFullError as SandboxDiskFullError,
)
from dsec.base.errors import (
    SandboxExitedError as SandboxExitedError,
)
from dsec.base.errors import (
    SandboxMovedError as SandboxMovedError,
)
from dsec.base.errors import (
    SandboxNotFoundError as SandboxNotFoundError,
)
from dsec.base.errors import (
    SandboxOutOfMemoryError as SandboxOutOfMemoryError,
)
from dsec.base.errors import (
    SandboxProcessLimitError as SandboxProcessLimitError,
)
from dsec.base.errors import (
    SnapshotNotFoundError as SnapshotNotFoundError,
)
from dsec.base.errors import (
    StateCorruptedError as StateCorruptedError,
)
from dsec.base.errors import (
    StateLockedError as StateLockedError,
)
from dsec.base.errors import (
    StateMismatchError as StateMismatchError,
)
from dsec.base.errors import (
    StoreUnavailableError as StoreUnavailableError,
)
from dsec.base.errors import (
    SwapFullError as SwapFullError,
)
from dsec.base.errors import (
    TaskFormatError as TaskFormatError,
)
from dsec.base.errors import (
    UnauthorizedError as UnauthorizedError,
)
from dsec.base.errors import (
    UnknownOutcomeError as UnknownOutcomeError,
)
from dsec.base.errors import (
    UnsafeArchiveError as UnsafeArchiveError,
)
from dsec.base.errors import (
    UnsupportedFileError as UnsupportedFileError,
)
from dsec.base.errors import (
    UserNotFoundError as UserNotFoundError,
)
from dsec.base.errors import (
    WorkCancelledError as WorkCancelledError,
)
from dsec.base.errors import (
    WriterFencedError as WriterFencedError,
)
from dsec.base.errors import (
    WrongNodeError as WrongNodeError,
)
from dsec.episode.endpoint import ModelEndpoint as ModelEndpoint
from dsec.episode.log_events import Verdict as Verdict
from dsec.episode.spec import AgentPolicy as AgentPolicy
from dsec.episode.spec import DeadlineMode as DeadlineMode
from dsec.episode.spec import EnvironmentMode as EnvironmentMode
from dsec.episode.spec import EpisodeCheck as EpisodeCheck
from dsec.episode.spec import EpisodeEnvironment as EpisodeEnvironment
from dsec.episode.spec import EpisodeInfo as EpisodeInfo
from dsec.episode.spec import EpisodeLimits as EpisodeLimits
from dsec.episode.spec import EpisodeRecovery as EpisodeRecovery
from dsec.episode.spec import EpisodeSpec as EpisodeSpec
from dsec.episode.spec import EpisodeState as EpisodeState
from dsec.episode.spec import LostFiles as LostFiles
from dsec.model.image_work import ImageProgress as ImageProgress
from dsec.model.image_work import ImageVerified as ImageVerified
from dsec.model.image_work import ImageWorkInfo as ImageWorkInfo
from dsec.model.image_work import PublishedImage as PublishedImage
from dsec.model.image_work import PushedImage as PushedImage
from dsec.model.sandbox import DiskFullAction as DiskFullAction
from dsec.model.sandbox import Lifetime as Lifetime
from dsec.model.sandbox import Network as Network
from dsec.model.sandbox import Resources as Resources
from dsec.model.sandbox import SandboxSpec as SandboxSpec
from dsec.model.state import CheckpointInfo as CheckpointInfo
from dsec.model.state import FingerprintReport as FingerprintReport
from dsec.model.state import JobInfo as JobInfo
from dsec.model.state import JobReport as JobReport
from dsec.model.state import MigrationReport as MigrationReport
from dsec.model.state import PackReport as PackReport
from dsec.model.state import ScrubRules as ScrubRules
from dsec.model.state import SnapshotInfo as SnapshotInfo
from dsec.sdk._async.client import AsyncClient as AsyncClient
from dsec.sdk._async.episodes import AsyncEpisodes as AsyncEpisodes
from dsec.sdk._async.sandbox import AsyncSandbox as AsyncSandbox
from dsec.sdk._sync.client import Client as Client
from dsec.sdk._sync.episodes import Episodes as Episodes
from dsec.sdk._sync.sandbox import Sandbox as Sandbox
from dsec.sdk.values import CommandFailedError as CommandFailedError
from dsec.sdk.values import RunResult as RunResult

__version__: str
