"""The attempts of a rollout that nobody has taken yet, and telling the node which images they will want.

A rollout knows its next tasks long before it runs them, which is what makes prefetching by plan possible: while the
lanes are busy, what the next attempts will read of their images is brought beside it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

from dsec.base.errors import DsecError
from dsec.distribution.prefetch import WINDOW
from dsec.model.prefetch import PrefetchHint, PrefetchStep
from dsec.service.prefetch import PrefetchService
from dsec.worker.tasks.images import image_tag
from dsec.worker.tasks.task import Task

Item = tuple[Task, int]
"""A task, and the number of an attempt at it."""


class ComingAttempts(Iterator[Item]):
    """The queue that all lanes take from.

    Args:
        items: the attempts, in order.
        prefetches: who is told what comes; None: nobody.
        owner: the rollout.
    """

    def __init__(self, items: Iterable[Item], prefetches: PrefetchService | None, owner: str) -> None:
        self._items = deque(items)
        self._prefetches = prefetches
        self._owner = owner[:100]
        self._told: tuple[str, ...] = ()
        self._is_telling = False

    def __next__(self) -> Item:
        if not self._items:
            raise StopIteration
        return self._items.popleft()

    async def tell(self) -> None:
        """Tell which images come next, unless that was said. A node that cannot be told loses nothing but time."""
        if self._prefetches is None or self._is_telling:
            return  # Whoever tells looks again before it ends.
        self._is_telling = True
        try:
            while (coming := self._coming()) != self._told:
                self._told = coming
                steps = tuple(PrefetchStep(images=(name,)) for name in coming)
                await self._prefetches.hint(PrefetchHint(owner=self._owner, steps=steps))
        except DsecError:
            self._prefetches = None
        finally:
            self._is_telling = False

    def _coming(self) -> tuple[str, ...]:
        """Return the next images, the nearest first, each once."""
        found: dict[str, None] = {}
        for task, _ in self._items:
            name = task.environment.docker_image
            if name is None and task.environment.dockerfile is not None:
                name = image_tag(task)
            if name:
                found.setdefault(name)
            if len(found) == WINDOW:
                break
        return tuple(found)
