"""What sandboxes will read of their images is brought before they read it: the node's half of prefetches.

A sandbox that is created has what its image's first use reads brought; a command of which a trace is known, what that
one reads; and behind either, the steps that somebody said come next (`PrefetchHint`). All of it ends with the sandbox.

Where several programs are known, the first command may be another one than the first use was. It mostly comes at once,
and what it reads is sooner told by it than guessed: so until one begins, or none has for a moment, only that is brought
which all of them read.

None of it may make a sandbox wait: everything happens in the background, and a sandbox whose images are here, or of
which nothing is known, costs a command one look into a mapping.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread

from dsec.base.errors import InvalidRequestError
from dsec.distribution.prefetch import PrefetchProgress
from dsec.images.lazy.tracing.traces import FIRST_USE, command_of
from dsec.images.prefetches import NoPrefetches
from dsec.model.prefetch import PrefetchHint, PrefetchStep

if TYPE_CHECKING:
    from dsec.node.core import Core

_LOOK_S, _STACKS = 60.0, 1024
GUESSED_AFTER_S = 0.5
"""How long after a sandbox was begun its first command is taken to be what the first use of its image was."""
_THREADS = 4
"""Each mounts what a hint names, or writes a line to the layer daemon; more only queue for that."""


@dataclass(slots=True)
class _Owner:
    """A sandbox whose images come when they are touched.

    Attributes:
        images: its stack.
        programs: those of which it is known what they read.
        current: the program of its current step.
        coming: the steps after that.
        is_guess: no command has begun, and it may be another one.
    """

    images: tuple[str, ...]
    programs: frozenset[str]
    current: str = FIRST_USE
    coming: list[PrefetchStep] = field(default_factory=list)
    is_guess: bool = False

    def steps(self) -> list[PrefetchStep]:
        return [PrefetchStep(images=self.images, command=self.current), *self.coming]


class NodePrefetches:
    """Prefetches for a node's sandboxes, and for those to come.

    Args:
        core: the node's inner state.
    """

    def __init__(self, core: Core) -> None:
        self._core = core
        self._prefetches = core.parts.prefetches
        self._is_off = isinstance(self._prefetches, NoPrefetches)
        self._owners: dict[str, _Owner] = {}
        self._here_until_s: dict[tuple[str, ...], float] = {}
        """Until when stacks of images that are wholly here are not looked at again."""
        self._threads = anyio.CapacityLimiter(_THREADS)

    def began(self, sandbox_id: str, images: Sequence[str]) -> None:
        """Bring what a new sandbox will read first."""
        stack, now_s = tuple(images), anyio.current_time()
        if not self._is_off and self._here_until_s.get(stack, 0.0) < now_s:
            self._core.supervisor.start(f"prefetch for {sandbox_id}", lambda: self._begin(sandbox_id, stack, now_s))

    async def _begin(self, sandbox_id: str, images: tuple[str, ...], began_s: float) -> None:
        programs = await anyio.to_thread.run_sync(self._prefetches.programs, images, limiter=self._threads)
        if programs is None:
            if len(self._here_until_s) >= _STACKS:
                self._here_until_s.clear()
            self._here_until_s[images] = anyio.current_time() + _LOOK_S
        if programs is None or self._core.registry.get(sandbox_id) is None:
            return
        owner = self._owners[sandbox_id] = _Owner(images, programs, is_guess=len(programs) > 1)
        if programs:
            await self._bring(sandbox_id, owner)
        if owner.is_guess:
            await anyio.sleep(GUESSED_AFTER_S)
        if owner.is_guess and self._owners.get(sandbox_id) is owner:
            owner.is_guess = False
            await self._bring(sandbox_id, owner)
        await self._watch(owner, began_s)

    async def _watch(self, owner: _Owner, began_s: float) -> None:
        """Keep what the first use of an image reads, where that is wanted and can be seen."""
        watched_s = self._core.settings.trace_s
        if not watched_s or FIRST_USE in owner.programs:
            return
        ago_s = anyio.current_time() - began_s
        if await anyio.to_thread.run_sync(self._prefetches.untouched, owner.images, ago_s, limiter=self._threads):
            await anyio.sleep(watched_s)
            await anyio.to_thread.run_sync(self._prefetches.keep_first_use, owner.images, limiter=self._threads)

    def command(self, sandbox_id: str, argv: Sequence[str]) -> None:
        """Note that a command begins; where it is known what it reads, that is brought now."""
        owner = self._owners.get(sandbox_id)
        if owner is None or not owner.programs:
            return
        program, was_guess = command_of(argv), owner.is_guess
        owner.is_guess = False
        if program != owner.current and program in owner.programs:
            owner.current = program
        elif not was_guess:
            return
        if owner.coming and command_of(owner.coming[0].command.split()) == program:
            del owner.coming[0]
        self._core.supervisor.start(f"prefetch for {sandbox_id}", lambda: self._go_on(sandbox_id, owner))

    def ended(self, sandbox_id: str) -> None:
        """Bring nothing more for a sandbox. Idempotent."""
        if self._owners.pop(sandbox_id, None) is not None:
            self._core.supervisor.start(f"end the prefetch for {sandbox_id}", lambda: self._stop(sandbox_id))

    async def hint(self, hint: PrefetchHint) -> PrefetchProgress:
        """Take what comes next, in place of what the same one said before, and return what that amounts to.

        Raises:
            SandboxNotFoundError: there is no such sandbox.
            InvalidRequestError: it names neither an owner nor a sandbox.
        """
        if hint.sandbox_id:
            self._core.registry.find(hint.sandbox_id)
            owner = self._owners.get(hint.sandbox_id)
            if owner is None:
                return PrefetchProgress()  # All of it is here, or it has just begun.
            owner.coming = list(hint.steps)
            return await self._bring(hint.sandbox_id, owner)
        if not hint.owner:
            raise InvalidRequestError("nobody says what comes next", resolution="give `owner` or `sandbox_id`")
        name = f"hint {hint.owner}"
        if not hint.steps:
            await self._stop(name)
            return PrefetchProgress()
        return await anyio.to_thread.run_sync(self._prefetches.begin, name, hint.steps, limiter=self._threads)

    async def _go_on(self, sandbox_id: str, owner: _Owner) -> None:
        await self._bring(sandbox_id, owner)

    async def _bring(self, sandbox_id: str, owner: _Owner) -> PrefetchProgress:
        begin = partial(self._prefetches.begin, sandbox_id, owner.steps(), is_guess=owner.is_guess)
        progress = await anyio.to_thread.run_sync(begin, limiter=self._threads)
        if self._owners.get(sandbox_id) is not owner:
            await self._stop(sandbox_id)  # It ended meanwhile.
        return progress

    async def _stop(self, owner: str) -> None:
        await anyio.to_thread.run_sync(self._prefetches.stop, owner, limiter=self._threads)
