"""Images: named stacks of read-only layers with the settings that commands start from."""

from __future__ import annotations

import enum

from dsec.base.units import KIB, MIB
from dsec.model.value import Value

STANDARD_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""For images that set none, such as those imported from a directory: without it no program would be found by name."""


class StateHooks(Value, frozen=True):
    """Commands of an image that carry the state of its processes through a checkpoint.

    Both run in the sandbox, as its user, in its directory. `export_state` runs at a checkpoint before the freeze and
    writes what is to be kept to its standard output; `import_state` runs after a restore and reads the same bytes from
    its standard input. A hook that fails, hangs or exceeds its size fails the operation with `HookFailedError`, and the
    sandbox goes on as before (checkpoint) or is not handed out (restore).

    Attributes:
        export_state, import_state: argument vectors; empty: none.
        timeout_s: for each run.
        maximum_bytes: of exported state.
    """

    export_state: tuple[str, ...] = ()
    import_state: tuple[str, ...] = ()
    timeout_s: float = 10.0
    maximum_bytes: int = 64 * MIB


class FingerprintRules(Value, frozen=True):
    """What a clean sandbox of an image is known by, beyond what is always compared.

    Always compared: processes, mounts, environment, seed, and every entry of the writable layer. These are added:

    Attributes:
        files: paths whose metadata (kind, mode, owner, size, time of change) must be as in the clean state. One that is
            not there in the clean state must not appear.
        contents: paths whose content must be, too; read on every check, so keep them few.
        ignored: paths that may differ, with all below them, where a sandbox is compared that somebody uses, and that
            `command` may write to. After a rollback they are compared like everything else.
        command: a check of one's own: it runs in the sandbox as its user, must end with status 0 in a fresh one, and
            its status and standard output must be the same in each; empty: none. It may leave nothing behind but below
            `ignored`. Makes each check as slow as the command.
        timeout_s: for the command; whatever it started is killed then.
        maximum_bytes: of the command's standard output; one that writes more is killed.
    """

    files: tuple[str, ...] = ()
    contents: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    timeout_s: float = 10.0
    maximum_bytes: int = 64 * KIB


class ImageConfig(Value, frozen=True):
    """What an image says about running in it.

    Attributes:
        env: environment of every command.
        workdir: directory of every command.
        user: user of every command: name, ``uid`` or ``uid:gid``.
        hooks: commands that carry the state of processes through a checkpoint.
        fingerprint: what a clean sandbox is known by, beyond what is always compared.
    """

    env: dict[str, str] = {}
    workdir: str = "/"
    user: str = "0"
    hooks: StateHooks = StateHooks()
    fingerprint: FingerprintRules = FingerprintRules()


class LayerFormat(enum.Enum):
    EROFS = "erofs"
    DIRECTORY = "directory"
    LAZY = "lazy"
    """A manifest is here; chunks come when they are touched (docs/images-lazy.md)."""


class LayerInfo(Value, frozen=True):
    """One read-only layer in the local store.

    Attributes:
        digest: ``sha256:...`` over the layer's canonical content listing (docs/formats/image-store.md).
        format: how it is stored.
        size_bytes: bytes on disk; of a lazy one, those of its EROFS file when all is here.
    """

    digest: str
    format: LayerFormat
    size_bytes: int


class ImageInfo(Value, frozen=True):
    """One image.

    Attributes:
        name: such as ``python`` or ``agent-runtime:v2.3`` (no tag means ``latest``).
        image_id: digest over layers and config.
        layers: from the lowest up.
        config: settings of commands.
        created_at_s: seconds since the epoch.
        source: where it came from, for people to read.
    """

    name: str
    image_id: str
    layers: tuple[LayerInfo, ...]
    config: ImageConfig = ImageConfig()
    created_at_s: float = 0.0
    source: str = ""
