"""The part of an OCI image configuration that sandboxes use."""

from __future__ import annotations

import msgspec

from dsec.model.image import ImageConfig


class OciRunConfig(msgspec.Struct, frozen=True, rename="pascal"):
    """``config`` of an OCI image configuration; the entrypoint is not used, since commands come from outside."""

    env: list[str] | None = None
    working_dir: str | None = None
    user: str | None = None


class OciRootfs(msgspec.Struct, frozen=True):
    diff_ids: list[str] = []


class OciImageConfig(msgspec.Struct, frozen=True):
    """An OCI (or Docker) image configuration."""

    rootfs: OciRootfs
    config: OciRunConfig | None = None


def image_config(config: OciImageConfig) -> ImageConfig:
    """Return our settings for an image."""
    run = config.config or OciRunConfig()
    pairs = (variable.partition("=") for variable in run.env or [])
    return ImageConfig(
        env={key: value for key, _, value in pairs if key},
        workdir=run.working_dir or "/",
        user=run.user or "0",
    )
