"""From a task's Dockerfile to an image of the local store, built once for all attempts and runs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import anyio

from dsec.base.errors import CallerError, CapabilityMissingError, DsecError
from dsec.model.image import ImageConfig, ImageInfo
from dsec.worker.tasks.archive import content_digest
from dsec.worker.tasks.task import Task

CONCURRENT_BUILDS = 2
"""Builds unpack and compress whole file systems: two keep a small host busy."""


class ImageBuilder(Protocol):
    """Builds images from Dockerfiles.

    `build` gives the image of `context_dir`/Dockerfile the name `tag` in the store of the service that will run the
    tasks and returns the name to use. It raises `DsecError`s only, and leaves nothing when cancelled.
    """

    async def build(self, context_dir: Path, tag: str) -> str: ...


def image_tag(task: Task) -> str:
    """Return the name of the image of a task's Dockerfile: the same content has the same name."""
    assert task.environment.dockerfile is not None
    stem = re.sub(r"[^a-z0-9]+", "-", task.folder.name.lower()).strip("-")[:40] or "task"
    return f"task-{stem}:{content_digest(task.environment.dockerfile.parent)[:16]}"


class ImageListing(Protocol):
    """Whoever can list images; every `SandboxService` can."""

    async def images(self) -> Sequence[ImageInfo]: ...


class TaskImages:
    """Names and settings of images for tasks; builds those that are missing, each once."""

    def __init__(self, listing: ImageListing, builder: ImageBuilder | None) -> None:
        self._listing = listing
        self._builder = builder
        self._configs: dict[str, ImageConfig] = {}
        self._asked: set[str] = set()
        self._built: set[str] = set()
        self._locks: dict[str, anyio.Lock] = {}
        self._failures: dict[str, CallerError] = {}
        self._limiter = anyio.CapacityLimiter(CONCURRENT_BUILDS)

    async def config_of(self, name: str) -> ImageConfig:
        """Return the settings of an image; empty ones when the service does not list it."""
        if name not in self._configs and name not in self._asked:
            self._asked.add(name)  # A name that is not listed is asked for once, and not again by every attempt.
            for info in await self._listing.images():
                self._configs[info.name] = self._configs[info.name.removesuffix(":latest")] = info.config
        return self._configs.get(name, ImageConfig())

    async def image_of(self, task: Task) -> str:
        """Return the image's name, building it first when needed.

        Raises:
            CapabilityMissingError: it has to be built and there is no builder.
            DsecError: the build failed; asking again raises the same, without building again.
        """
        if task.environment.docker_image is not None:
            return task.environment.docker_image
        tag = image_tag(task)
        async with self._locks.setdefault(tag, anyio.Lock()):
            if tag in self._failures:
                raise self._failures[tag]
            await self.config_of(tag)
            if tag not in self._configs and tag not in self._built:
                await self._build(task, tag)
                self._built.add(tag)
                self._asked.discard(tag)
                await self.config_of(tag)
        return tag

    async def _build(self, task: Task, tag: str) -> None:
        if self._builder is None:
            raise CapabilityMissingError(
                f"task {task.name} has a Dockerfile, and there is nothing here to build it with",
                resolution="run where `dsec image build` works, or name an image in [environment] docker_image",
            )
        assert task.environment.dockerfile is not None
        try:
            async with self._limiter:
                with anyio.fail_after(task.environment.build_timeout_s):
                    await self._builder.build(task.environment.dockerfile.parent, tag)
        except DsecError as error:
            raise self._failed(task, tag, error.brief, error.detail) from error
        except TimeoutError as error:
            raise self._failed(task, tag, f"not done after {task.environment.build_timeout_s:g} s", "") from error

    def _failed(self, task: Task, tag: str, brief: str, detail: str) -> CallerError:
        # Whoever's fault it was, building again for the task's next attempt would only fail again.
        self._failures[tag] = CallerError(
            f"the image of task {task.name} could not be built: {brief}",
            detail=detail,
            resolution=f"see it fail with: dsec image build {task.folder / 'environment'} -t {tag}",
        )
        return self._failures[tag]
