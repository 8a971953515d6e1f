"""Images for a rollout on this host's own node: Dockerfiles are built, images with a recipe are made on first use."""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence
from pathlib import Path

import anyio
import anyio.to_thread
import msgspec

from dsec.base.errors import DsecError, ExternalCommandError, error_from_code
from dsec.cli.context import Options
from dsec.cli.output import note
from dsec.model.sandbox import SandboxSpec
from dsec.node import namespace
from dsec.service.port import SandboxService
from dsec.worker.tasks.discovery import discover
from dsec.worker.tasks.images import ImageBuilder


class StoreBuilder:
    """Builds into the image store of this host's node.

    A build is a process of its own, `dsec image build`, so that it can be ended: its time limit kills it, and what it
    started dies with it.
    """

    def __init__(self, options: Options) -> None:
        self._state_dir = options.state_dir

    async def build(self, context_dir: Path, tag: str) -> str:
        """Build `context_dir`/Dockerfile under the name `tag`. Implements `ImageBuilder`.

        Raises:
            DsecError: as `dsec.images.build.build`.
        """
        note(f"building image {tag}")
        program = [sys.executable, "-m", "dsec", "--state-dir", str(self._state_dir), "--error-format", "json"]
        done = await anyio.run_process([*program, "image", "build", str(context_dir), "--tag", tag], check=False)
        if done.returncode != 0:
            raise _error_of(done.stderr.decode(errors="replace"), done.returncode)
        return tag

    def ensure(self, name: str) -> None:
        """Make an image that has a recipe. Blocks.

        Raises:
            ImageNotFoundError: it is neither stored nor has it a recipe.
        """
        from dsec.images import recipes
        from dsec.images.store import LocalImageStore

        store = LocalImageStore(self._state_dir / "images")
        try:
            recipes.ensure(store, name, progress=note)
        finally:
            store.close()


def _error_of(stderr: str, status: int) -> DsecError:
    """Return the error that a command said as JSON on its last line."""
    last = stderr.strip().rpartition("\n")[2]
    try:
        said = msgspec.json.decode(last, type=_Said).error
    except msgspec.DecodeError:
        return ExternalCommandError(f"`dsec image build` failed with status {status}", detail=stderr[-4000:])
    return error_from_code(said.code, said.brief, detail=said.detail, resolution=said.resolution)


class _SaidError(msgspec.Struct):
    code: str
    brief: str
    detail: str = ""
    resolution: str = ""


class _Said(msgspec.Struct):
    error: _SaidError


def image_builder(options: Options) -> ImageBuilder | None:
    """Return what builds images for the service that the options name; None for a server, whose store is not here."""
    return None if options.url else StoreBuilder(options)


async def ensure_recipes(options: Options, service: SandboxService, names: Sequence[str]) -> None:
    """Make those of `names` that are missing and have a recipe, so that no attempt waits for it."""
    if options.url:
        return
    there = {image.name.removesuffix(":latest") for image in await service.images()}
    from dsec.images.recipes import RECIPES

    for name in names:
        if name.removesuffix(":latest") in there or name.removesuffix(":latest") not in RECIPES:
            continue
        if namespace.is_ordinary_user():
            # Only in its namespace can the many owners of an image's files be kept: let the node make it.
            await service.remove((await service.create(SandboxSpec(image=name))).sandbox_id)
        else:
            await anyio.to_thread.run_sync(functools.partial(StoreBuilder(options).ensure, name))


def image_names(tasks: Path, pattern: str, limit: int | None) -> list[str]:
    """Return the images that the tasks name."""
    found = discover(tasks, pattern=pattern, limit=limit).tasks
    return sorted({task.environment.docker_image for task in found if task.environment.docker_image})
