"""The files of an episode in whatever sandbox holds them, or in none: checkpoints, snapshots, and the log itself.

A version is looked for where it is cheapest: as a checkpoint of the present sandbox, as a snapshot in the store, and
last by doing again what the log says, from the newest snapshot on or from the sandbox's beginning
(`dsec.worker.episodes.environments.replay`). What was brought back is a checkpoint of the same name again.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from dsec.base.errors import DsecError, InvalidStateError
from dsec.episode.operations import RoundRecord
from dsec.episode.spec import LostFiles
from dsec.episode.totals import EnvironmentKind
from dsec.model.state import CheckpointRequest
from dsec.worker.episodes.environments.meter import EnvironmentMeter
from dsec.worker.episodes.environments.replay import ReplayReport, check_replayable, replay, rounds_between
from dsec.worker.episodes.environments.sandbox import (
    EnvironmentSandbox,
    is_untouched,
    lost_is_platform,
    wanted_versions,
)
from dsec.worker.episodes.ports import LifeContext, first_version
from dsec.worker.episodes.recovery.checking import checked_hands


class EnvironmentWorkspace:
    """Implements `dsec.worker.episodes.ports.Workspace`.

    Args:
        context: of the life.
        sandbox: of the episode.
        meter: hears what bringing files back took.

    Attributes:
        replayed: what was done again to bring the files back; None: nothing.
    """

    def __init__(self, context: LifeContext, sandbox: EnvironmentSandbox, meter: EnvironmentMeter) -> None:
        self._context = context
        self._sandbox = sandbox
        self._meter = meter
        self.replayed: ReplayReport | None = None

    async def version(self) -> str | None:
        """Return None: see `SandboxWorkspace`."""
        return await self._sandbox.workspace().version() if self._sandbox.sandbox_id else None

    async def versions(self) -> Collection[str]:
        """Return what it can be put back to. The store is asked only for what the sandbox does not hold."""
        held = set(await self._sandbox.checkpoints())
        missing = wanted_versions(self._context.progress) - held
        if missing:
            held |= (await self._snapshots()).keys() & missing
        if self._may_replay():
            held.add(self._context.progress.workspace)
        if not self._sandbox.is_given:
            held.add(first_version(self._context.episode_id))  # What the image and the spec make.
        return held

    async def save(self, number: int) -> str:
        """Make a checkpoint and return its name."""
        with lost_is_platform():
            return await self._sandbox.workspace().save(number)

    async def restore(self, version: str) -> None:
        """Put a version back, in the present sandbox or in another.

        Raises:
            InvalidStateError: it cannot be made again as it was.
            DsecError: it could not be put back.
        """
        if version in await self._sandbox.checkpoints():
            await self._sandbox.put_back(version)
            return
        if version in await self._snapshots():
            await self._sandbox.let_go()
            await self._sandbox.bring_back(version)
            return
        await self._make_again(version)

    async def keep_only(self, versions: Collection[str]) -> None:
        """Forget other checkpoints and snapshots of this episode, the newest snapshot excepted."""
        if self._sandbox.sandbox_id:
            await self._sandbox.workspace().keep_only(versions)
        if self._context.spec.environment.snapshot_rounds:
            await self._sandbox.forget_snapshots(versions)

    # -- making files again --------------------------------------------------------------------------------------------

    def _may_replay(self) -> bool:
        environment = self._context.spec.environment
        return (
            environment.lost_files is not LostFiles.REFUSED
            and not is_untouched(self._context.progress)
            and self._context.progress.workspace != ""
        )

    async def _snapshots(self) -> dict[str, str]:
        try:
            return await self._sandbox.snapshots()
        except DsecError:
            return {}  # Then the log is what there is.

    async def _make_again(self, version: str) -> None:
        context = self._context
        base, rounds = await self._base(version, await context.recorded(context.episode_id))
        check_replayable(rounds)
        began_s = context.clock.boot_s()
        await self._begin_from(base)
        report = await replay(rounds, checked_hands(self._sandbox, context.spec.check))
        await self._judge(report, base)
        if version != base:
            await context.state.checkpoint(self._sandbox.sandbox_id, CheckpointRequest(name=version, hooks=False))
        self.replayed = report
        await self._meter.note_once(
            self._sandbox.sandbox_id,
            EnvironmentKind.RESTORED,
            took_s=context.clock.boot_s() - began_s,
            detail=f"{version} from {base}: {report.shown()}",
        )

    async def _base(self, version: str, rounds: Sequence[RoundRecord]) -> tuple[str, list[RoundRecord]]:
        """Return the newest version that is to be had, and the rounds that lead from it to the wanted one."""
        bases = [*(await self._snapshots()), *(await self._sandbox.checkpoints())]
        if not self._sandbox.is_given:
            bases.append(first_version(self._context.episode_id))
        found: tuple[str, list[RoundRecord]] | None = None
        for base in dict.fromkeys(bases):
            try:
                between = rounds_between(rounds, base=base, wanted=version)
            except InvalidStateError:
                continue
            if found is None or len(between) < len(found[1]):
                found = base, between
        if found is None:
            raise InvalidStateError(
                f"the files of {version} are gone, and the log does not say how to make them again",
                resolution="keep whole logs, or save files in the store now and then (snapshot_rounds)",
            )
        return found

    async def _begin_from(self, base: str) -> None:
        if base in await self._sandbox.checkpoints():
            await self._sandbox.put_back(base)
            return
        await self._sandbox.let_go()
        if base in await self._snapshots():
            await self._sandbox.bring_back(base)
        else:
            await self._sandbox.create()
            await self._sandbox.save_first()

    async def _judge(self, report: ReplayReport, base: str) -> None:
        if report.differing and self._context.spec.environment.lost_files is LostFiles.EXACT:
            await self._sandbox.let_go()
            raise InvalidStateError(
                f"the files of {self._context.episode_id} could not be made again from {base} as they were",
                detail=report.shown(),
                resolution="begin another attempt, or let the episode tolerate it (lost_files)",
            )
