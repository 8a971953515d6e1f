"""What a request may ask for: pure checks that name the field and its bound."""

from __future__ import annotations

import math
import re

import msgspec

from dsec.base.errors import CapabilityMissingError, InvalidRequestError
from dsec.base.ids import MAX_ID_LENGTH
from dsec.base.units import KIB, MIB, format_size
from dsec.model.capability import LIMIT_CAPABILITIES, Capability, CapabilityReport
from dsec.model.files import MAXIMUM_PATH_BYTES
from dsec.model.process import CommandRequest, TerminalSize
from dsec.model.sandbox import MINIMUM_MEMORY_BYTES, ExpiryAction, Lifetime, Resources, SandboxSpec
from dsec.node.settings import NodeSettings

MAXIMUM_METADATA_PAIRS = 64
MAXIMUM_METADATA_BYTES = 1 * KIB
MAXIMUM_ENVIRONMENT_BYTES = 128 * KIB
MAXIMUM_ARGUMENT_BYTES = 128 * KIB - 1
"""Linux's MAX_ARG_STRLEN, with its NUL (execve(2))."""
MAXIMUM_ARGUMENTS_BYTES = 1 * MIB
MAXIMUM_LAYERS = 32
MAXIMUM_STDIN_BYTES = 64 * MIB

_ENVIRONMENT_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_HOSTNAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?")
_LEAST = {"cpu_millis": 10, "memory_bytes": MINIMUM_MEMORY_BYTES, "swap_bytes": 0, "disk_bytes": 64 * KIB, "pids": 4}
_LEAST["open_files"] = 16
_MOST = 1 << 60
_SEEDS = 1 << 64

Reports = dict[Capability, CapabilityReport]


def check_spec(spec: SandboxSpec) -> None:
    """Raise `InvalidRequestError` for a spec that no host could serve."""
    check_text("image", spec.image)
    if not spec.image:
        raise InvalidRequestError("image is empty", resolution="name an image; `dsec image ls` shows them")
    if len(spec.layers) > MAXIMUM_LAYERS:
        raise InvalidRequestError(f"layers holds {len(spec.layers)} names; at most {MAXIMUM_LAYERS} are allowed")
    for layer in spec.layers:
        check_text("layers", layer)
    _check_resources(spec.resources)
    check_environment(spec.env)
    check_metadata(spec.metadata)
    check_seed(spec.seed)
    check_lifetime(spec.lifetime)
    if spec.hostname is not None and (len(spec.hostname) > MAX_ID_LENGTH or not _HOSTNAME.fullmatch(spec.hostname)):
        raise InvalidRequestError(
            f"hostname {spec.hostname[:80]!r} is not a host name",
            resolution="use letters, digits and dashes, at most 63 characters (RFC 1123)",
        )
    _check_optional("user", spec.user)
    _check_directory("workdir", spec.workdir)


def _check_resources(resources: Resources) -> None:
    for name, least in _LEAST.items():
        value = getattr(resources, name)
        if value is not None and not least <= value <= _MOST:
            shown = format_size(least) if name.endswith("_bytes") else str(least)
            raise InvalidRequestError(f"resources.{name} is {value}; it must be at least {shown}")


def check_seed(seed: int | None) -> None:
    """Refuse what MessagePack, and so a snapshot, cannot hold."""
    if seed is not None and not -_SEEDS // 2 <= seed < _SEEDS:
        raise InvalidRequestError(f"seed has {seed.bit_length()} bits; it must fit in 64")


def check_metadata(metadata: dict[str, str]) -> None:
    if len(metadata) > MAXIMUM_METADATA_PAIRS:
        raise InvalidRequestError(f"metadata holds {len(metadata)} pairs; at most {MAXIMUM_METADATA_PAIRS} are allowed")
    for name, value in metadata.items():
        check_text("metadata", name)
        check_text("metadata", value)
        size = len(name.encode()) + len(value.encode())
        if size > MAXIMUM_METADATA_BYTES:
            raise InvalidRequestError(
                f"metadata {name[:40]!r} has {size} bytes; at most {MAXIMUM_METADATA_BYTES} are allowed for one pair"
            )


def check_lifetime(lifetime: Lifetime) -> None:
    for name in ("idle_timeout_s", "maximum_s"):
        value = getattr(lifetime, name)
        if value is not None and not (math.isfinite(value) and value > 0):
            raise InvalidRequestError(f"lifetime.{name} is {value}; it must be above zero, or null for never")


def check_environment(env: dict[str, str]) -> None:
    total = 0
    for name, value in env.items():
        if not _ENVIRONMENT_NAME.fullmatch(name):
            raise InvalidRequestError(
                f"env name {name[:80]!r} is not valid",
                resolution="use letters, digits and _, not beginning with a digit",
            )
        check_text(f"env {name}", value)
        total += len(name) + len(value.encode()) + 2
    if total > MAXIMUM_ENVIRONMENT_BYTES:
        raise InvalidRequestError(f"env has {total} bytes; at most {MAXIMUM_ENVIRONMENT_BYTES} are allowed")


def check_text(field: str, value: str) -> None:
    """Refuse NUL and text that is not Unicode (lone surrogates)."""
    if "\0" in value:
        raise InvalidRequestError(f"{field} holds a NUL byte")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise InvalidRequestError(f"{field} holds text that is not valid Unicode") from error


def _check_optional(field: str, value: str | None) -> None:
    if value is None:
        return
    check_text(field, value)
    if not value or len(value) > 256:
        raise InvalidRequestError(f"{field} must have 1 to 256 characters")


def _check_directory(field: str, value: str | None) -> None:
    if value is not None and not value.startswith("/"):
        raise InvalidRequestError(f"{field} {value[:80]!r} must be an absolute path")
    if value is not None:
        check_path(field, value)


def check_path(field: str, path: str) -> None:
    """Refuse paths that no kernel would take. Bytes that are not UTF-8 travel as surrogate escapes."""
    if not path:
        raise InvalidRequestError(f"{field} is empty")
    if "\0" in path:
        raise InvalidRequestError(f"{field} holds a NUL byte")
    if len(path) * 4 < MAXIMUM_PATH_BYTES:
        return
    try:
        size = len(path.encode("utf-8", "surrogateescape"))
    except UnicodeEncodeError as error:
        raise InvalidRequestError(f"{field} holds text that is not valid Unicode") from error
    if size >= MAXIMUM_PATH_BYTES:
        raise InvalidRequestError(f"{field} has {size} bytes; at most {MAXIMUM_PATH_BYTES - 1} are allowed")


def check_command(request: CommandRequest, settings: NodeSettings) -> None:
    """Raise `InvalidRequestError` for a command that cannot be run as asked."""
    if not request.argv or not request.argv[0]:
        raise InvalidRequestError("argv is empty", resolution="name a program to run")
    _check_arguments(request.argv)
    check_timeout(request.timeout_s, settings)
    if not 0 <= request.output_limit_bytes <= settings.maximum_output_limit_bytes:
        raise InvalidRequestError(
            f"output_limit_bytes is {request.output_limit_bytes}; it must be 0 to {settings.maximum_output_limit_bytes}"
        )
    if request.env:
        check_environment(request.env)
    if request.cwd is not None:
        check_path("cwd", request.cwd)
    if request.user is not None:
        _check_optional("user", request.user)
    if len(request.stdin) > MAXIMUM_STDIN_BYTES:
        raise InvalidRequestError(
            f"stdin has {len(request.stdin)} bytes; at most {MAXIMUM_STDIN_BYTES} are allowed",
            resolution="keep the input open and write to the running command, or upload a file",
        )
    if request.terminal is not None:
        check_terminal(request.terminal)


def check_terminal(size: TerminalSize) -> None:
    if not (0 < size.columns < 65_536 and 0 < size.rows < 65_536):
        raise InvalidRequestError(f"a terminal of {size.columns} x {size.rows} is not possible")


def _check_arguments(argv: tuple[str, ...]) -> None:
    total = 0
    for argument in argv:
        if "\0" in argument:
            raise InvalidRequestError("argv holds a NUL byte")
        size = len(argument) if argument.isascii() else len(argument.encode("utf-8", "surrogatepass"))
        if size > MAXIMUM_ARGUMENT_BYTES:
            raise InvalidRequestError(
                f"an argument has {size} bytes; at most {MAXIMUM_ARGUMENT_BYTES} are allowed",
                resolution="pass it on stdin or in a file",
            )
        total += size + 1
    if total > MAXIMUM_ARGUMENTS_BYTES:
        raise InvalidRequestError(f"argv has {total} bytes; at most {MAXIMUM_ARGUMENTS_BYTES} are allowed")


def check_timeout(timeout_s: float | None, settings: NodeSettings) -> None:
    if timeout_s is not None and not 0 < timeout_s <= settings.maximum_command_timeout_s:
        raise InvalidRequestError(
            f"timeout_s is {timeout_s}; it must be above 0 and at most {settings.maximum_command_timeout_s:.0f}"
        )


def merged_reports(*groups: tuple[CapabilityReport, ...]) -> Reports:
    """One report for each capability: the first group that has it counts, else the first that speaks of it."""
    merged: Reports = {}
    for report in (report for group in groups for report in group):
        known = merged.get(report.capability)
        if known is None or (report.available and not known.available):
            merged[report.capability] = report
    return merged


def resolve_spec(spec: SandboxSpec, sandbox_id: str, settings: NodeSettings, reports: Reports) -> SandboxSpec:
    """Fill in the node's defaults and refuse what the host cannot enforce.

    A limit that was asked for needs its capability; one that is only a default is left out without it.

    Raises:
        CapabilityMissingError: names the field and the capability.
    """
    if spec.network.rules:
        require_capability(Capability.NETWORK_ALLOW, "network.rules", reports)
    require_pause(spec.lifetime, reports)
    limits: dict[str, int | None] = {"open_files": spec.resources.open_files or settings.default_open_files}
    for name, capability in LIMIT_CAPABILITIES.items():
        asked = getattr(spec.resources, name)
        if asked is not None:
            require_capability(capability, f"resources.{name}", reports)
        elif _available(capability, reports):
            asked = 0 if name == "swap_bytes" else getattr(settings, f"default_{name}")
        limits[name] = asked
    return msgspec.structs.replace(
        spec, resources=Resources(**limits), hostname=spec.hostname if spec.hostname is not None else sandbox_id
    )


def _available(capability: Capability, reports: Reports) -> bool:
    report = reports.get(capability)
    return report is not None and report.available


def require_pause(lifetime: Lifetime, reports: Reports) -> None:
    """Refuse a lifetime that ends in a pause where nothing can be paused."""
    if lifetime.on_expiry is ExpiryAction.PAUSE:
        require_capability(Capability.PAUSE, "lifetime.on_expiry", reports)


def require_capability(capability: Capability, field: str, reports: Reports) -> None:
    if _available(capability, reports):
        return
    report = reports.get(capability)
    raise CapabilityMissingError(
        f"{field} needs {capability.value}, which this host does not have",
        detail=report.reason if report else "no driver of this node speaks of it",
        resolution=(report.resolution if report else "") or "leave it out, or use another node",
    )
