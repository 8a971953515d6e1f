"""Whether a task can run on a node as that is now: what `dsec task validate` adds to the look at the folder."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from dsec.base.errors import CapabilityMissingError, DsecError, InvalidRequestError
from dsec.images.dockerfile import images_of
from dsec.images.names import IMPLIED_PREFIXES, canonical_name, not_found
from dsec.images.recipes import RECIPES
from dsec.model.capability import CapabilityReport
from dsec.model.node import NodeInfo, limits_beyond
from dsec.worker.tasks.support import check_support, task_resources
from dsec.worker.tasks.task import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Here:
    """A node as tasks see it.

    Attributes:
        node: what it says of itself.
        reports: what it can enforce.
        images: names of its images, in any form.
        can_build: Dockerfiles can be built for it from here.
    """

    node: NodeInfo
    reports: Sequence[CapabilityReport]
    images: Collection[str]
    can_build: bool

    def problem(self, task: Task) -> DsecError | None:
        """Return what would keep a task from running, or None."""
        try:
            check_support(task, self.reports)
            self._check_images(task)
        except DsecError as error:
            return error
        return None

    def warnings(self, task: Task) -> Iterator[str]:
        """Yield what is worth knowing and keeps nothing from running."""
        yield from limits_beyond(task_resources(task), self.node)

    def _check_images(self, task: Task) -> None:
        environment = task.environment
        if environment.docker_image is not None:
            self._check_image(environment.docker_image)
            return
        assert environment.dockerfile is not None
        if not self.can_build:
            raise CapabilityMissingError(
                f"task {task.name} has a Dockerfile, and there is nothing here to build it with",
                resolution="run where `dsec image build` works, or name an image in [environment] docker_image",
            )
        for name in images_of(environment.dockerfile.read_text(encoding="utf8", errors="surrogateescape")):
            self._check_image(name)

    def _check_image(self, name: str) -> None:
        known = {canonical_name(image) for image in self.images} | set(RECIPES)
        if not any(form in known for form in _forms(name)):
            raise not_found(name, known)


def _forms(name: str) -> Iterator[str]:
    """Yield the names under which an image may be stored: as written, and without the registry that Docker implies."""
    for prefix in ("", *IMPLIED_PREFIXES):
        if name.startswith(prefix):
            try:
                yield canonical_name(name.removeprefix(prefix))
            except InvalidRequestError:
                continue  # Not a name of ours; then it is not stored either.
