"""Pools as a table and as a live picture in the terminal."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

import anyio

from dsec.base.units import format_duration
from dsec.cli.output import console, table
from dsec.model.pool import PoolInfo
from dsec.service.pools import PoolService

if TYPE_CHECKING:
    from rich.console import RenderableType

COLUMNS = ("pool", "ready", "level", "waiting", "in use", "making", "recycling", "arrive", "made", "hold", "handed out")
_KEPT = 60
_BARS = " ▁▂▃▄▅▆▇█"


def row(info: PoolInfo) -> tuple[str, ...]:
    """One pool as cells of `COLUMNS`."""
    now = info.statistics
    return (
        info.pool_id,
        str(now.ready),
        str(now.level),
        str(now.waiting),
        str(now.in_use) if info.policy.maximum is None else f"{now.in_use} of {info.policy.maximum}",
        str(now.creating),
        f"{now.recycling}+{now.recycle_queue}",
        f"{now.arrival_rate_per_s:.1f}/s",
        f"{now.creation_rate_per_s + now.recycle_rate_per_s:.1f}/s",
        "-" if now.hold_time_s is None else format_duration(now.hold_time_s),
        str(now.hand_outs),
    )


def bars(values: Sequence[float], top: float) -> str:
    """Return one character for each value, as high as its share of `top`."""
    if top <= 0:
        return _BARS[0] * len(values)
    steps = len(_BARS) - 1
    return "".join(_BARS[max(0, min(steps, round(value / top * steps)))] for value in values)


class PoolPicture:
    """The newest readings of each pool, drawn."""

    def __init__(self) -> None:
        self._ready: dict[str, deque[float]] = defaultdict(lambda: deque(maxlen=_KEPT))
        self._waiting: dict[str, deque[float]] = defaultdict(lambda: deque(maxlen=_KEPT))
        self._level: dict[str, deque[float]] = defaultdict(lambda: deque(maxlen=_KEPT))

    def draw(self, infos: Sequence[PoolInfo]) -> RenderableType:
        """Take the readings in and return the picture."""
        from rich.console import Group
        from rich.text import Text

        parts: list[RenderableType] = [table(COLUMNS, (row(info) for info in infos))]
        if not infos:
            parts.append(Text("no pools; `dsec pool set IMAGE` makes one", style="dim"))
        for info in infos:
            parts += self._lines(info)
        return Group(*parts)

    def _lines(self, info: PoolInfo) -> list[RenderableType]:
        from rich.text import Text

        now, name = info.statistics, info.pool_id
        lines: list[RenderableType] = [Text(""), Text(name, style="bold")]
        series = (("ready", self._ready, now.ready), ("level", self._level, now.level))
        for _, kept, value in (*series, ("waiting", self._waiting, now.waiting)):
            kept[name].append(value)
        top = max(1.0, *self._ready[name], *self._level[name])
        for label, kept, value in series:
            lines.append(Text(f"  {label:<8}{value:>6}  {bars(kept[name], top)}"))
        waiting = self._waiting[name]
        style = "red" if now.waiting else ""
        lines.append(Text(f"  {'waiting':<8}{now.waiting:>6}  {bars(waiting, max(1.0, *waiting))}", style=style))
        lines += [Text(f"  ! {warning}", style="yellow") for warning in now.warnings]
        return lines


async def watch_pools(pools: PoolService, interval_s: float, count: int | None) -> None:
    """Draw until interrupted, or `count` times. Into a pipe each picture follows the one before."""
    from rich.live import Live

    screen, picture, looks = console(), PoolPicture(), 0
    with Live(console=screen, auto_refresh=False, transient=False) as live:
        while True:
            drawn = picture.draw(await pools.list_pools())
            if screen.is_terminal:
                live.update(drawn, refresh=True)
            else:
                screen.print(drawn)
            looks += 1
            if count is not None and looks >= count:
                return
            await anyio.sleep(interval_s)
