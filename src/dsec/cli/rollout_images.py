"""Images for a rollout on this host's own node: Dockerfiles are built, images with a recipe are made on first use."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path

import anyio.to_thread

from dsec.cli.context import Options
from dsec.cli.output import note
from dsec.service.port import SandboxService
from dsec.worker.tasks.discovery import discover
from dsec.worker.tasks.images import ImageBuilder


class StoreBuilder:
    """Builds into the image store of this host's node."""

    def __init__(self, options: Options) -> None:
        self._root = options.state_dir / "images"

    async def build(self, context_dir: Path, tag: str) -> str:
        """Build `context_dir`/Dockerfile under the name `tag`. Implements `ImageBuilder`."""
        note(f"building image {tag}")
        return await anyio.to_thread.run_sync(self._build, context_dir, tag)

    def _build(self, context_dir: Path, tag: str) -> str:
        from dsec.images.build import BuildRequest, build
        from dsec.images.store import LocalImageStore

        store = LocalImageStore(self._root)
        try:
            return build(store, BuildRequest(context=context_dir, name=tag)).name
        finally:
            store.close()

    def ensure(self, name: str) -> None:
        """Make an image that has a recipe. Blocks.

        Raises:
            ImageNotFoundError: it is neither stored nor has it a recipe.
        """
        from dsec.images import recipes
        from dsec.images.store import LocalImageStore

        store = LocalImageStore(self._root)
        try:
            recipes.ensure(store, name, progress=note)
        finally:
            store.close()


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
        if name.removesuffix(":latest") not in there and name.removesuffix(":latest") in RECIPES:
            await anyio.to_thread.run_sync(functools.partial(StoreBuilder(options).ensure, name))


def image_names(tasks: Path, pattern: str, limit: int | None) -> list[str]:
    """Return the images that the tasks name."""
    found = discover(tasks, pattern=pattern, limit=limit).tasks
    return sorted({task.environment.docker_image for task in found if task.environment.docker_image})
