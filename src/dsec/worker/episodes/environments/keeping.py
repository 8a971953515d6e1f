"""The ways to keep an episode's environment while the model thinks: what is done after a round, and before tools.

=========  =============================================  ===================================  ========================
way        let go, after a round                          bring back, before tools             between them
=========  =============================================  ===================================  ========================
resident   nothing                                        nothing                              all of it stands
paused     processes freeze, their memory goes to swap    they thaw; memory is read back       its memory lies on disk
emptied    the files are put back to their version, in    nothing: the sandbox stands bare     files, and an init of
           a fresh sandbox of the same id                                                      under 1 MiB
stored     the version is saved in the store, and the     a sandbox is made from it            nothing on the node
           sandbox is taken away
=========  =============================================  ===================================  ========================

Emptied and stored are both "rebuilt": what a round leaves is its files alone. Measured (docs/environments.md has the
figures), emptying takes about as long as forking a child of the version and a quarter of the way through the
store; and it makes no second sandbox that a death could leave behind. So it is what "rebuilt" means, unless the episode
saves each round in the store anyway: then nothing need stay on the node.
"""

from __future__ import annotations

from typing import Protocol

import anyio

from dsec.base.errors import CapabilityMissingError, DsecError
from dsec.episode.spec import EnvironmentMode
from dsec.worker.episodes.environments.sandbox import EnvironmentSandbox
from dsec.worker.episodes.ports import LifeContext

CLEAN_UP_S = 60.0


class Keeping(Protocol):
    """One way. Both operations leave a sandbox that can be gone on with, or none and the version in the store, also
    when they fail or are cancelled."""

    async def let_go(self, version: str) -> None:
        """Give the memory of the sandbox up, which has just saved `version`, or had it already.

        Raises:
            DsecError: it could not be; the sandbox stands as before.
        """

    async def bring_back(self, version: str) -> None:
        """Let tools run again. Idempotent.

        Raises:
            DsecError: they cannot.
        """


class Resident:
    """It stays."""

    async def let_go(self, version: str) -> None:
        """Do nothing."""
        del version

    async def bring_back(self, version: str) -> None:
        """Do nothing."""
        del version


class Paused:
    """It is frozen, and its memory lies in swap.

    Args:
        context: of the life.
        sandbox: which.
    """

    def __init__(self, context: LifeContext, sandbox: EnvironmentSandbox) -> None:
        self._service = context.service
        self._sandbox = sandbox

    async def let_go(self, version: str) -> None:
        """Pause it."""
        del version
        await self._service.pause(self._sandbox.sandbox_id)

    async def bring_back(self, version: str) -> None:
        """Resume it; a pause that still writes memory out ends."""
        del version
        await self._service.resume(self._sandbox.sandbox_id)


class Emptied:
    """Its processes and memory go; the bare sandbox stays, with its files.

    Args:
        sandbox: which.
    """

    def __init__(self, sandbox: EnvironmentSandbox) -> None:
        self._sandbox = sandbox

    async def let_go(self, version: str) -> None:
        """Put the version back. What is cut short is waited for: it takes no longer than to begin anew."""
        with anyio.CancelScope(shield=True, deadline=anyio.current_time() + CLEAN_UP_S):
            await self._sandbox.put_back(version)

    async def bring_back(self, version: str) -> None:
        """Do nothing: it stands."""
        del version


class Stored:
    """Nothing of it stays on its node.

    Args:
        sandbox: which.
    """

    def __init__(self, sandbox: EnvironmentSandbox) -> None:
        self._sandbox = sandbox
        self._saved = ""

    async def let_go(self, version: str) -> None:
        """Save the version and take the sandbox away. Cut short before that is saved, the sandbox stands."""
        if self._saved != version:
            await self._sandbox.save(version)
            self._saved = version
        with anyio.CancelScope(shield=True, deadline=anyio.current_time() + CLEAN_UP_S):
            await self._sandbox.let_go()

    async def bring_back(self, version: str) -> None:
        """Make a sandbox of the version, unless one stands."""
        if not self._sandbox.sandbox_id:
            await self._sandbox.bring_back(version)


class Keepings:
    """The ways that there are for an episode, and which of them turned out to be impossible here.

    Args:
        context: of the life.
        sandbox: of the episode.

    Attributes:
        impossible: modes that cannot be, with the reason.
    """

    def __init__(self, context: LifeContext, sandbox: EnvironmentSandbox) -> None:
        each_round = context.spec.environment.snapshot_rounds == 1 and not sandbox.is_given
        self._emptied = Emptied(sandbox)
        self._ways: dict[EnvironmentMode, Keeping] = {
            EnvironmentMode.RESIDENT: Resident(),
            EnvironmentMode.PAUSED: Paused(context, sandbox),
            EnvironmentMode.REBUILT: Stored(sandbox) if each_round else self._emptied,
        }
        self.impossible: dict[EnvironmentMode, str] = {}

    def way(self, mode: EnvironmentMode) -> Keeping:
        """Return how a mode is done; an impossible one stays resident."""
        return self._ways[EnvironmentMode.RESIDENT if mode in self.impossible else mode]

    def failed(self, mode: EnvironmentMode, error: DsecError) -> None:
        """Take note that letting go failed. What the host can never do is not tried again in this life: without a
        store a rebuilt environment is emptied, and without swap it stays."""
        if not isinstance(error, CapabilityMissingError):
            return
        if mode is EnvironmentMode.REBUILT and self._ways[mode] is not self._emptied:
            self._ways[mode] = self._emptied
        else:
            self.impossible[mode] = error.brief
