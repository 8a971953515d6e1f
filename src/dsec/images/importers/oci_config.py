"""The part of an OCI image configuration that sandboxes use."""

from __future__ import annotations

import re
from datetime import datetime
from typing import TypeVar

import msgspec

from dsec.base.errors import InvalidRequestError
from dsec.base.foreign_json import decode_foreign
from dsec.images.fingerprint_rules import check_rules
from dsec.images.registry.reference import is_digest
from dsec.model.image import FingerprintRules, ImageConfig, StateHooks
from dsec.model.value import Value

_EXPORT, _IMPORT = "dev.dsec.hooks.export", "dev.dsec.hooks.import"
_LIMITS, _FINGERPRINT = "dev.dsec.hooks.limits", "dev.dsec.fingerprint"
_MAXIMUM_STEP_LENGTH = 200
_BUILDER = re.compile(r"(RUN )?(\|\d+ .*? )?/bin/sh -c (#\(nop\) +)?")
"""Docker's and buildah's: ``|2 ARG=value ARG=value /bin/sh -c COMMAND``, and ``/bin/sh -c #(nop) COPY ...``."""
_Kind = TypeVar("_Kind")


class OciRunConfig(msgspec.Struct, frozen=True, rename="pascal"):
    """``config`` of an OCI image configuration; the entrypoint is not used, since commands come from outside."""

    env: list[str] | None = None
    working_dir: str | None = None
    user: str | None = None
    labels: dict[str, str] | None = None


class OciRootfs(msgspec.Struct, frozen=True):
    """The layers of an image. What they are called names files of the image store, so that it has to be digests."""

    diff_ids: list[str] = []

    def __post_init__(self) -> None:
        for diff_id in self.diff_ids:
            if not is_digest(diff_id):
                raise ValueError(f"{diff_id[:100]!r} is no sha256 digest of a layer")


class OciHistory(msgspec.Struct, frozen=True):
    """A step by which an image was made; one that added no layer is marked."""

    created: str | None = None
    created_by: str | None = None
    empty_layer: bool | None = None


class OciImageConfig(msgspec.Struct, frozen=True):
    """An OCI (or Docker) image configuration."""

    rootfs: OciRootfs
    config: OciRunConfig | None = None
    history: list[OciHistory] | None = None


def layer_history(config: OciImageConfig) -> dict[str, OciHistory]:
    """Return the step that made each layer, by diff id; nothing where the history does not fit the layers."""
    steps = [step for step in config.history or [] if not step.empty_layer]
    diff_ids = config.rootfs.diff_ids
    return dict(zip(diff_ids, steps, strict=True)) if len(steps) == len(diff_ids) else {}


def told_step(step: OciHistory) -> str:
    """Return what a step ran, for people: without the shell and the arguments that builders write before it."""
    return _BUILDER.sub("", step.created_by or "").removesuffix("# buildkit").strip()[:_MAXIMUM_STEP_LENGTH]


def layer_times(config: OciImageConfig) -> dict[str, float]:
    """Return when each layer was made, in seconds since the epoch, by diff id; those of which nothing is known are
    left out, as are the zeros of reproducible builds."""
    times = {diff_id: _seconds(step.created or "") for diff_id, step in layer_history(config).items()}
    return {diff_id: time_s for diff_id, time_s in times.items() if time_s > 0}


def _seconds(text: str) -> float:
    """Return the seconds since the epoch of a time as in RFC 3339; 0 for what is none."""
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        return 0.0


def image_config(config: OciImageConfig) -> ImageConfig:
    """Return our settings for an image."""
    run = config.config or OciRunConfig()
    pairs = (variable.partition("=") for variable in run.env or [])
    return ImageConfig(
        env={key: value for key, _, value in pairs if key},
        workdir=run.working_dir or "/",
        user=run.user or "0",
        hooks=hooks_from(run.labels or {}),
        fingerprint=_rules_from(run.labels or {}),
    )


def labels_of(config: ImageConfig) -> dict[str, str]:
    """Return the labels that declare what `image_config` reads from them; none for what is not declared."""
    hooks = config.hooks
    limits = _HookLimits(timeout_s=hooks.timeout_s, maximum_bytes=hooks.maximum_bytes)
    declared: dict[str, tuple[object, object]] = {
        _EXPORT: (hooks.export_state, ()),
        _IMPORT: (hooks.import_state, ()),
        _LIMITS: (limits, _HookLimits()),
        _FINGERPRINT: (config.fingerprint, FingerprintRules()),
    }
    return {name: msgspec.json.encode(has).decode() for name, (has, default) in declared.items() if has != default}


def _rules_from(labels: dict[str, str]) -> FingerprintRules:
    rules = _parsed(labels, _FINGERPRINT, FingerprintRules) or FingerprintRules()
    return check_rules(rules, source=f"the image's label {_FINGERPRINT}")


class _HookLimits(Value, frozen=True):
    timeout_s: float = StateHooks().timeout_s
    maximum_bytes: int = StateHooks().maximum_bytes


def hooks_from(labels: dict[str, str]) -> StateHooks:
    """Return the hooks that labels declare: argument vectors as JSON arrays, and an object of limits.

    Raises:
        InvalidRequestError: a label of ours is not what it should be; names it.
    """
    limits = _parsed(labels, _LIMITS, _HookLimits) or _HookLimits()
    return StateHooks(
        export_state=_parsed(labels, _EXPORT, tuple[str, ...]) or (),
        import_state=_parsed(labels, _IMPORT, tuple[str, ...]) or (),
        timeout_s=limits.timeout_s,
        maximum_bytes=limits.maximum_bytes,
    )


def _parsed(labels: dict[str, str], name: str, kind: type[_Kind]) -> _Kind | None:
    if not labels.get(name):
        return None
    try:
        return decode_foreign(labels[name], kind)
    except msgspec.MsgspecError as error:
        raise InvalidRequestError(
            f"the image's label {name} cannot be read", detail=str(error), resolution="write it as docs/images.md tells"
        ) from error
