"""The one table of routes. The server's router, the OpenAPI document and the client's paths all come from it."""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any
from urllib.parse import quote_from_bytes, unquote_to_bytes

import msgspec

from dsec.api import wire
from dsec.api.wire import invalid_body
from dsec.distribution.messages import Acknowledgement, Announcement, Lookup, LookupReply, Report
from dsec.distribution.prefetch import PrefetchProgress
from dsec.model.capability import CapabilityReport
from dsec.model.event import NodeEvent
from dsec.model.files import FileInfo
from dsec.model.fleet import DrainRequest, FleetInfo
from dsec.model.image import ImageInfo
from dsec.model.image_layers import Composition
from dsec.model.image_use import ImageUse
from dsec.model.image_work import ImagePublish, ImagePull, ImagePush, ImageVerify, ImageWorkInfo
from dsec.model.node import NodeInfo
from dsec.model.peer_proof import Hello, HelloAnswer
from dsec.model.pool import PoolInfo
from dsec.model.prefetch import PrefetchHint
from dsec.model.process import CommandRequest, CommandResult, ProcessInfo, SessionCommand, SessionInfo, SessionRequest
from dsec.model.sandbox import Lifetime, SandboxInfo, SandboxState, SandboxStats
from dsec.model.state import (
    CheckpointInfo,
    CheckpointRequest,
    FingerprintReport,
    ForkRequest,
    JobInfo,
    MigrationReport,
    MigrationRequest,
    PackReport,
    PackRequest,
    RestoreRequest,
    SnapshotInfo,
    SnapshotRequest,
)
from dsec.model.value import Value
from dsec.placement.view import NodeView
from dsec.service.migration import (
    MigrationAccepted,
    MigrationCommit,
    MigrationOffer,
    MigrationRound,
    MigrationStatus,
    ReleaseAnswer,
    RoundReceipt,
)
from dsec.service.tracking import TrackerOverview

QUICK_S = 60.0
"""Deadline of an operation that has no duration of its own; a body's `timeout_s` is added to it."""
BUILD_S = 1800.0
"""Deadline of an operation that may have to build an image first."""
TRANSFER_S = 3600.0
"""Deadline of a file or archive transfer, and of what moves the state of whole sandboxes."""
COMMIT_S = 300.0
"""Deadline of making a sandbox that was received ready to serve; its image's import hook runs in it."""
CHILD_S = 1.0
"""What each child of a fork adds to its deadline; a hundredth of that is expected of a quiet host."""
STREAM_S = 86_400.0
"""Deadline of a stream that has no end of its own (attach, watch) and of a command without a timeout."""


METADATA_PREFIX = "metadata."
"""Begins the query parameters that filter a listing by metadata."""


class Carry(enum.Enum):
    """How a body travels."""

    VALUE = "value"
    EVENTS = "events"
    OCTETS = "octets"
    TAR = "tar"
    SOCKET = "socket"


class PathQuery(Value, frozen=True):
    """A path in the sandbox, and as whom to touch it (None: the sandbox's default user)."""

    path: str
    user: str | None = None


class WriteQuery(PathQuery, frozen=True):
    """`permissions` are octal digits, such as ``644``."""

    append: bool = False
    permissions: Annotated[str, msgspec.Meta(pattern="^[0-7]{3,4}$")] = "644"


class RemoveQuery(PathQuery, frozen=True):
    recursive: bool = False


class ListQuery(PathQuery, frozen=True):
    depth: Annotated[int, msgspec.Meta(ge=1, le=64)] = 1


class WatchQuery(PathQuery, frozen=True):
    recursive: bool = False


class PauseQuery(Value, frozen=True):
    """`keep_memory`: freeze only."""

    keep_memory: bool = False


class MoveQuery(Value, frozen=True):
    source: str
    target: str
    user: str | None = None


class EventsQuery(Value, frozen=True):
    """Events since a wall-clock time in seconds; of one task and of none, or of all."""

    since_s: float = 0.0
    task: str = ""


class ImageQuery(Value, frozen=True):
    """An image by its name; empty: all."""

    image: str = ""


class LayersQuery(Value, frozen=True):
    """An image, or an environment: `toolkits` are names with commas between them."""

    image: str
    workspace: str = ""
    toolkits: str = ""


class FilterQuery(Value, frozen=True):
    """`state` may be repeated; further parameters are ``metadata.KEY=VALUE``."""

    state: tuple[SandboxState, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One operation.

    Attributes:
        name: of the operation; the server's handler and OpenAPI's `operationId`.
        method, path: as in HTTP; ``{...}`` are path parameters.
        summary: one line for the document.
        query: struct of the query parameters.
        filters: the query is read by the face's `filter_of`: names may be repeated, and ``metadata.KEY`` holds more.
        body: type of the request body, for `Carry.VALUE`.
        body_carry: how the request body travels.
        result: type of the answer (for events: of one event).
        result_carry: how the answer travels.
        status: of success.
        deadline_s: seconds until the server gives up; a body's `timeout_s` is added.
        ends_with_client: the operation is cancelled when its client goes away.
        public: needs no token.
        peer: is for the node's peers: the sandbox API's token does not open it (`dsec.model.peer_proof`).
    """

    name: str
    method: str
    path: str
    summary: str
    query: type[Value] | None = None
    filters: bool = False
    body: Any = None
    body_carry: Carry = Carry.VALUE
    result: Any = None
    result_carry: Carry = Carry.VALUE
    status: int = 200
    deadline_s: float = QUICK_S
    ends_with_client: bool = False
    public: bool = False
    peer: bool = False

    def target(self, query: Iterable[tuple[str, str]] = (), **parameters: str) -> str:
        """Return the request target: path parameters filled in, query percent-encoded byte by byte."""
        path = self.path
        for name, value in parameters.items():
            path = path.replace("{" + name + "}", percent_encode(value, safe=""))
        pairs = "&".join(f"{percent_encode(key)}={percent_encode(value)}" for key, value in query)
        return f"{path}?{pairs}" if pairs else path


def percent_encode(text: str, *, safe: str = "/") -> str:
    """Percent-encode the bytes of `text`; surrogate escapes stand for bytes that are not UTF-8."""
    return quote_from_bytes(text.encode("utf-8", "surrogateescape"), safe=safe)


def parse_query(query: bytes) -> list[tuple[str, str]]:
    """Split a query string. ``+`` is a space; bytes that are not UTF-8 become surrogate escapes."""
    pairs = []
    for part in query.split(b"&"):
        if part:
            key, _, value = part.partition(b"=")
            pairs.append((_unquote(key), _unquote(value)))
    return pairs


def _unquote(data: bytes) -> str:
    return unquote_to_bytes(data.replace(b"+", b" ")).decode("utf-8", "surrogateescape")


def convert_query(kind: type[Value], pairs: Iterable[tuple[str, str]]) -> Any:
    """Build the query struct.

    Raises:
        InvalidRequestError: a parameter is unknown, missing, repeated or malformed; it is named.
    """
    values: dict[str, str] = {}
    for key, value in pairs:
        if key in values:
            raise invalid_body(ValueError(f"query parameter `{key}` is repeated"))
        values[key] = value
    try:
        return msgspec.convert(values, kind, strict=False)
    except msgspec.ValidationError as error:
        raise invalid_body(error) from error


_SANDBOX = "/v1/sandboxes/{sandbox_id}"
_PROCESS = _SANDBOX + "/processes/{process_id}"
_SESSION = _SANDBOX + "/sessions/{session_id}"
_SNAPSHOT = "/v1/snapshots/{snapshot}"
_JOB = "/v1/jobs/{job}"
_MIGRATION = "/v1/peer/migrations/{migration_id}"
_TRACKER = "/v1/peer/chunks"
_EVENTS, _OCTETS, _TAR, _SOCKET = Carry.EVENTS, Carry.OCTETS, Carry.TAR, Carry.SOCKET

_TABLE: tuple[Route, ...] = (
    Route(name="health", method="GET", path="/v1/health", summary="Say that the server answers.",
          result=wire.Health, public=True),
    Route(name="openapi", method="GET", path="/v1/openapi.json", summary="This document.",
          result=dict[str, Any], public=True),
    Route(name="node", method="GET", path="/v1/node", summary="Say which node this is, and what its host has.",
          result=NodeInfo),
    Route(name="images", method="GET", path="/v1/images", summary="List the images.", result=list[ImageInfo]),
    Route(name="pull_image", method="POST", path="/v1/images/pull",
          summary="Make an image of a registry or of an object store known here; progress first, the report last.",
          body=ImagePull, result=wire.ImageStreamEvent, result_carry=_EVENTS, deadline_s=STREAM_S),
    Route(name="publish_image", method="POST", path="/v1/images/publish",
          summary="Put an image into an object store; progress first, the report last.",
          body=ImagePublish, result=wire.ImageStreamEvent, result_carry=_EVENTS, deadline_s=STREAM_S),
    Route(name="push_image", method="POST", path="/v1/images/push",
          summary="Put an image into a registry; progress first, the report last.",
          body=ImagePush, result=wire.ImageStreamEvent, result_carry=_EVENTS, deadline_s=STREAM_S),
    Route(name="verify_image", method="POST", path="/v1/images/verify",
          summary="Check an image, and mend it if asked to; findings as they are made, the report last.",
          body=ImageVerify, result=wire.ImageStreamEvent, result_carry=_EVENTS, deadline_s=STREAM_S),
    Route(name="image_work", method="GET", path="/v1/images/work",
          summary="Say which pulls, publications, pushes and verifications go on or wait.",
          result=list[ImageWorkInfo]),
    Route(name="cancel_image_work", method="DELETE", path="/v1/images/work/{work_id}",
          summary="End one of them, for all who watch it; what it had made is gone.", status=204,
          deadline_s=TRANSFER_S),
    Route(name="image_layers", method="GET", path="/v1/images/layers",
          summary="Say what an image, or an environment of several, is made of.",
          query=LayersQuery, result=Composition),
    Route(name="image_statistics", method="GET", path="/v1/images/statistics",
          summary="Say what of an image, or of all, is here, was read and came for nothing.",
          query=ImageQuery, result=list[ImageUse]),
    Route(name="prefetch", method="PUT", path="/v1/images/prefetch",
          summary="Say what comes next, so that what it reads of images is brought before.",
          body=PrefetchHint, result=PrefetchProgress),
    Route(name="capabilities", method="GET", path="/v1/capabilities", summary="Say what the node can enforce.",
          result=list[CapabilityReport]),
    Route(name="list_pools", method="GET", path="/v1/pools", summary="List the pools of ready sandboxes.",
          result=list[PoolInfo]),
    Route(name="set_pool", method="PUT", path="/v1/pools", summary="Make the pool of a spec's shape, or set it anew.",
          body=wire.SetPoolRequest, result=PoolInfo, deadline_s=BUILD_S),
    Route(name="remove_pool", method="DELETE", path="/v1/pools/{pool_id}",
          summary="Take a pool away; what tasks have stays theirs.", status=204),
    Route(name="events", method="GET", path="/v1/events", summary="Tell what happened to creations and pools.",
          query=EventsQuery, result=list[NodeEvent]),
    Route(name="create", method="POST", path="/v1/sandboxes",
          summary="Create a sandbox; the same sandbox_id and spec return the same sandbox.",
          body=wire.CreateRequest, result=SandboxInfo, status=201, deadline_s=BUILD_S, ends_with_client=True),
    Route(name="list", method="GET", path="/v1/sandboxes",
          summary="List sandboxes; filter by `state` and `metadata.KEY`.",
          query=FilterQuery, filters=True, result=list[SandboxInfo]),
    Route(name="inspect", method="GET", path=_SANDBOX, summary="Describe a sandbox.", result=SandboxInfo),
    Route(name="remove", method="DELETE", path=_SANDBOX, summary="Stop a sandbox and forget it.", status=204),
    Route(name="statistics", method="GET", path=_SANDBOX + "/statistics", summary="Read what a sandbox uses.",
          result=SandboxStats),
    Route(name="extend", method="PUT", path=_SANDBOX + "/lifetime", summary="Replace the lifetime.",
          body=Lifetime, result=SandboxInfo),
    Route(name="pause", method="POST", path=_SANDBOX + "/pause",
          summary="Freeze a sandbox and give its memory back; one whose memory has no room in swap runs on.",
          query=PauseQuery, result=SandboxInfo, deadline_s=TRANSFER_S),
    Route(name="resume", method="POST", path=_SANDBOX + "/resume", summary="Thaw a sandbox.", result=SandboxInfo),
    Route(name="rollback", method="POST", path=_SANDBOX + "/rollback",
          summary="Return to the clean state, or to a checkpoint.", body=wire.RollbackRequest, result=SandboxInfo),
    Route(name="end_processes", method="POST", path=_SANDBOX + "/end-processes",
          summary="Kill every command, session and daemon; files stay.", status=204),
    Route(name="stop", method="POST", path=_SANDBOX + "/stop", summary="Destroy a sandbox; its record stays.",
          result=SandboxInfo),
    Route(name="run", method="POST", path=_SANDBOX + "/run", summary="Run a command to its end.",
          body=CommandRequest, result=CommandResult, ends_with_client=True),
    Route(name="stream", method="POST", path=_SANDBOX + "/stream", summary="Run a command and hear it as it goes.",
          body=CommandRequest, result=wire.CommandEvent, result_carry=_EVENTS, ends_with_client=True),
    Route(name="terminal", method="GET", path=_SANDBOX + "/terminal",
          summary="Run a command over a WebSocket, with input, signals and resizing.",
          result_carry=_SOCKET, deadline_s=STREAM_S, ends_with_client=True),
    Route(name="start_process", method="POST", path=_SANDBOX + "/processes", summary="Start a background process.",
          body=CommandRequest, result=ProcessInfo, status=201),
    Route(name="list_processes", method="GET", path=_SANDBOX + "/processes", summary="List background processes.",
          result=list[ProcessInfo]),
    Route(name="process_events", method="GET", path=_PROCESS + "/events",
          summary="Hear a background process: first its buffer, then what comes.",
          result=wire.CommandEvent, result_carry=_EVENTS, deadline_s=STREAM_S, ends_with_client=True),
    Route(name="attach", method="GET", path=_PROCESS + "/attach",
          summary="Attach to a background process over a WebSocket, with input.",
          result_carry=_SOCKET, deadline_s=STREAM_S, ends_with_client=True),
    Route(name="wait_process", method="POST", path=_PROCESS + "/wait", summary="Wait for a background process.",
          body=wire.WaitRequest, result=CommandResult, ends_with_client=True),
    Route(name="signal_process", method="POST", path=_PROCESS + "/signal", summary="Signal a background process.",
          body=wire.SignalRequest, status=204),
    Route(name="open_session", method="POST", path=_SANDBOX + "/sessions", summary="Open a shell session.",
          body=SessionRequest, result=SessionInfo, status=201),
    Route(name="run_in_session", method="POST", path=_SESSION + "/run", summary="Run shell text in a session.",
          body=SessionCommand, result=CommandResult, ends_with_client=True),
    Route(name="close_session", method="DELETE", path=_SESSION, summary="Close a session.", status=204),
    Route(name="read_file", method="GET", path=_SANDBOX + "/files", summary="Read a file.", query=PathQuery,
          result_carry=_OCTETS, deadline_s=TRANSFER_S, ends_with_client=True),
    Route(name="write_file", method="PUT", path=_SANDBOX + "/files", summary="Write a file.", query=WriteQuery,
          body_carry=_OCTETS, result=FileInfo, deadline_s=TRANSFER_S),
    Route(name="remove_file", method="DELETE", path=_SANDBOX + "/files", summary="Remove a file or directory.",
          query=RemoveQuery, status=204),
    Route(name="stat_file", method="GET", path=_SANDBOX + "/files/stat", summary="Describe a file.",
          query=PathQuery, result=FileInfo),
    Route(name="list_files", method="GET", path=_SANDBOX + "/files/list", summary="List a directory.",
          query=ListQuery, result=list[FileInfo]),
    Route(name="make_directory", method="POST", path=_SANDBOX + "/files/directory",
          summary="Make a directory and its parents.", query=PathQuery, result=wire.DirectoryMade),
    Route(name="move_file", method="POST", path=_SANDBOX + "/files/move", summary="Rename a file or directory.",
          query=MoveQuery, status=204),
    Route(name="watch_files", method="GET", path=_SANDBOX + "/files/watch", summary="Hear changes in a directory.",
          query=WatchQuery, result=wire.WatchEvent, result_carry=_EVENTS, deadline_s=STREAM_S, ends_with_client=True),
    Route(name="download", method="GET", path=_SANDBOX + "/archive",
          summary="Download a file or directory as a tar stream.", query=PathQuery,
          result_carry=_TAR, deadline_s=TRANSFER_S, ends_with_client=True),
    Route(name="upload", method="PUT", path=_SANDBOX + "/archive", summary="Unpack a tar stream into a directory.",
          query=PathQuery, body_carry=_TAR, status=204, deadline_s=TRANSFER_S),
    Route(name="checkpoint", method="POST", path=_SANDBOX + "/checkpoints",
          summary="Save the present state on this node, while commands run on.",
          body=CheckpointRequest, result=CheckpointInfo, status=201),
    Route(name="list_checkpoints", method="GET", path=_SANDBOX + "/checkpoints",
          summary="List the checkpoints of a sandbox, the oldest first; `parent` makes a tree of them.",
          result=list[CheckpointInfo]),
    Route(name="remove_checkpoint", method="DELETE", path=_SANDBOX + "/checkpoints/{checkpoint}",
          summary="Forget a checkpoint; what began from it stays.", status=204),
    Route(name="fork", method="POST", path=_SANDBOX + "/fork", summary="Make children of a sandbox: all or none.",
          body=ForkRequest, result=list[SandboxInfo], status=201, ends_with_client=True),
    Route(name="snapshot", method="POST", path=_SANDBOX + "/snapshot",
          summary="Make a state durable in the store; only what is not there yet travels.",
          body=SnapshotRequest, result=SnapshotInfo, status=201, deadline_s=TRANSFER_S, ends_with_client=True),
    Route(name="pack", method="POST", path=_SANDBOX + "/pack",
          summary="Make an image of what a session changed, scrubbed of residue.",
          body=PackRequest, result=PackReport, deadline_s=TRANSFER_S, ends_with_client=True),
    Route(name="migrate", method="POST", path=_SANDBOX + "/migrate", summary="Move a sandbox to another node.",
          body=MigrationRequest, result=MigrationReport, deadline_s=TRANSFER_S, ends_with_client=True),
    Route(name="fingerprint", method="GET", path=_SANDBOX + "/fingerprint",
          summary="Compare a sandbox with its recorded clean state.", result=FingerprintReport),
    Route(name="list_snapshots", method="GET", path="/v1/snapshots", summary="List what the store holds.",
          result=list[SnapshotInfo]),
    Route(name="restore", method="POST", path=_SNAPSHOT + "/restore",
          summary="Make a sandbox from a snapshot, given by id or name.",
          body=RestoreRequest, result=SandboxInfo, status=201, ends_with_client=True),
    Route(name="remove_snapshot", method="DELETE", path=_SNAPSHOT,
          summary="Forget a snapshot; those made upon it stay readable.", status=204),
    Route(name="list_jobs", method="GET", path="/v1/jobs", summary="List the jobs that live sandboxes name.",
          result=list[JobInfo]),
    Route(name="pause_job", method="POST", path=_JOB + "/pause",
          summary="Pause every sandbox of a job; progress comes first, the report last.", query=PauseQuery,
          result=wire.JobStreamEvent, result_carry=_EVENTS, deadline_s=TRANSFER_S),
    Route(name="resume_job", method="POST", path=_JOB + "/resume",
          summary="Resume every sandbox of a job; progress comes first, the report last.",
          result=wire.JobStreamEvent, result_carry=_EVENTS, deadline_s=TRANSFER_S),
    Route(name="fleet", method="GET", path="/v1/fleet", summary="Say how this node and its peers are.",
          result=FleetInfo),
    Route(name="drain", method="POST", path="/v1/fleet/drain",
          summary="Take no more sandboxes and move all to peers; progress comes first, the report last.",
          body=DrainRequest, result=wire.DrainStreamEvent, result_carry=_EVENTS, deadline_s=STREAM_S),
    Route(name="undo_drain", method="DELETE", path="/v1/fleet/drain", summary="Take sandboxes again.", status=204),
    Route(name="peer_hello", method="POST", path="/v1/peer/hello",
          summary="Prove to know the peers' secret, and let the caller do so.", body=Hello, result=HelloAnswer,
          public=True),
    Route(name="peer_view", method="GET", path="/v1/peer/view", summary="Tell a peer how full this node is.",
          result=NodeView, peer=True),
    Route(name="peer_offer", method="POST", path="/v1/peer/migrations",
          summary="Ask whether this node takes a sandbox.", body=MigrationOffer, result=MigrationAccepted, status=201,
          peer=True),
    Route(name="peer_status", method="GET", path=_MIGRATION, summary="Say how a migration stands here.",
          result=MigrationStatus, peer=True),
    Route(name="peer_round", method="PUT", path=_MIGRATION + "/rounds", summary="Take one increment of a sandbox.",
          query=MigrationRound, body_carry=_OCTETS, result=RoundReceipt, deadline_s=TRANSFER_S, peer=True),
    Route(name="peer_commit", method="POST", path=_MIGRATION + "/commit", summary="Prepare what was sent.",
          body=MigrationCommit, status=204, deadline_s=COMMIT_S, peer=True),
    Route(name="peer_release", method="POST", path=_MIGRATION + "/release", summary="Take a prepared sandbox over.",
          result=ReleaseAnswer, peer=True),
    Route(name="peer_abort", method="POST", path=_MIGRATION + "/abort", summary="Forget a migration.", status=204,
          peer=True),
    Route(name="tracker_announce", method="POST", path=_TRACKER + "/announce",
          summary="Tell the tracker what chunks a node has.", body=Announcement, result=Acknowledgement, peer=True),
    Route(name="tracker_look_up", method="POST", path=_TRACKER + "/lookup",
          summary="Ask the tracker where chunks are to be had.", body=Lookup, result=LookupReply, peer=True),
    Route(name="tracker_report", method="POST", path=_TRACKER + "/report", summary="Tell the tracker what peers did.",
          body=Report, status=204, peer=True),
    Route(name="tracker_overview", method="GET", path=_TRACKER, summary="Say what the tracker knows of nodes.",
          result=TrackerOverview, peer=True),
)  # fmt: skip

ROUTES: Mapping[str, Route] = {route.name: route for route in _TABLE}
"""Every operation by its name."""


def deadline_of(route: Route, body: Any) -> float:
    """Seconds that the operation may take: the route's own, plus what the body asks for."""
    if isinstance(body, ForkRequest):
        if body.spread:
            return TRANSFER_S  # Its children move, with all that their parent wrote.
        return min(route.deadline_s + CHILD_S * max(0, body.count), TRANSFER_S)
    if body is None or not hasattr(body, "timeout_s"):
        return route.deadline_s
    if body.timeout_s is None or not math.isfinite(body.timeout_s):
        return STREAM_S  # What is no number is refused by the service.
    return route.deadline_s + float(body.timeout_s)
