"""What an episode's environment uses, in stretches of time: each ends where the way in which it is kept changes.

Memory is read at both ends of a stretch, and its integral taken as if it had grown evenly in between; a preparation
counts from its start with all that stands at its end, as the formulas have it. What happens beside the loop is written
down when the loop comes by (`flush`): nothing may come between a log and a whole state that stands for it. Durations
are of a clock that nobody sets; the wall clock says only when a stretch began. A reading that cannot be had counts as
nothing, and the next operation says what is wrong with the sandbox.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from dsec.base.errors import DsecError
from dsec.episode.log_events import EnvironmentUsed
from dsec.episode.totals import EnvironmentKind
from dsec.model.sandbox import SandboxStats
from dsec.worker.episodes.ports import LifeContext


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stretch:
    sandbox_id: str
    kind: EnvironmentKind
    detail: str
    began_wall_s: float
    began_s: float
    memory_bytes: int
    cpu_s: float


class EnvironmentMeter:
    """Writes down how the sandbox of an episode is kept.

    Args:
        context: of the life.
    """

    def __init__(self, context: LifeContext) -> None:
        self._context = context
        self._stretch: _Stretch | None = None
        self._pending: list[EnvironmentUsed] = []

    async def turn(
        self,
        sandbox_id: str,
        kind: EnvironmentKind,
        *,
        detail: str = "",
        closing: EnvironmentKind | None = None,
        held: bool = False,
    ) -> SandboxStats:
        """End the present stretch and begin one of another kind; return what was read.

        Args:
            sandbox_id: the sandbox that the new stretch is of; empty: there is none, and no stretch.
            kind: how it is kept from now on, unless it turns out otherwise.
            detail: for people.
            closing: what the stretch that ends turned out to be.
            held: the memory of the stretch that ends stood to its end, and has just gone.
        """
        read = await self._read(sandbox_id)
        is_same = self._stretch is not None and self._stretch.sandbox_id == sandbox_id
        await self._end(read if is_same and not held else None, closing)
        if not sandbox_id:
            return SandboxStats()
        read = read or SandboxStats()
        self._stretch = _Stretch(
            sandbox_id=sandbox_id,
            kind=kind,
            detail=detail,
            began_wall_s=self._context.clock.wall_s(),
            began_s=self._context.clock.boot_s(),
            memory_bytes=read.memory_bytes or 0,
            cpu_s=read.cpu_s or 0.0,
        )
        return read

    async def end(self, closing: EnvironmentKind | None = None) -> None:
        """End the present stretch; the sandbox is about to go."""
        if self._stretch is not None:
            await self._end(await self._read(self._stretch.sandbox_id), closing)

    async def note_once(
        self, sandbox_id: str, kind: EnvironmentKind, *, took_s: float, memory_bytes: int = 0, detail: str = ""
    ) -> None:
        """Write down a stretch that has just ended, such as the making of a sandbox, whose memory grew from nothing."""
        ended_s = self._context.clock.wall_s()
        used = EnvironmentUsed(
            sandbox_id=sandbox_id,
            kind=kind,
            began_s=ended_s - took_s,
            ended_s=ended_s,
            memory_byte_s=round(memory_bytes * took_s / 2),
            detail=detail,
        )
        self._note(used)

    async def _read(self, sandbox_id: str) -> SandboxStats | None:
        try:
            return await self._context.service.statistics(sandbox_id) if sandbox_id else None
        except DsecError:
            return None

    async def _end(self, read: SandboxStats | None, closing: EnvironmentKind | None) -> None:
        stretch, self._stretch = self._stretch, None
        if stretch is None:
            return
        took_s = max(0.0, self._context.clock.boot_s() - stretch.began_s)
        memory_bytes = stretch.memory_bytes if read is None else read.memory_bytes or 0
        cpu_s = stretch.cpu_s if read is None else read.cpu_s or 0.0
        # The account of processors begins anew with each rollback.
        kind = closing or stretch.kind
        spent_s = cpu_s - stretch.cpu_s if cpu_s >= stretch.cpu_s else cpu_s
        self._note(
            EnvironmentUsed(
                sandbox_id=stretch.sandbox_id,
                kind=kind,
                began_s=stretch.began_wall_s,
                ended_s=stretch.began_wall_s + took_s,
                memory_byte_s=round(_held_bytes(kind, stretch.memory_bytes, memory_bytes) * took_s),
                cpu_s=round(spent_s, 6),
                detail=stretch.detail,
            )
        )

    def _note(self, used: EnvironmentUsed) -> None:
        self._pending.append(used)

    async def flush(self) -> None:
        """Write down what was seen. It promises nothing: where the log takes no more, whoever commits hears of it."""
        pending, self._pending = self._pending, []
        for used in pending:
            if self._context.progress.ended is None:
                with suppress(DsecError):
                    await self._context.note(used)


def _held_bytes(kind: EnvironmentKind, begin_bytes: int, end_bytes: int) -> float:
    if kind in (EnvironmentKind.PREPARED, EnvironmentKind.WASTED):
        return max(begin_bytes, end_bytes)
    return (begin_bytes + end_bytes) / 2
