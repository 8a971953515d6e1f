"""The workspace of an episode in a sandbox: a version is a checkpoint, known by the name that the episode gave it.

A name stays what it is when the files are brought into another sandbox; ids of checkpoints do not.

Whoever made or restored a version knows that the files are that version, until an operation begins that may change
them. After the death of a worker nobody knows it: a command of its may still be running and write a moment after we
have looked, whatever a fingerprint says. So a worker that comes anew says that it cannot tell, and the last version is
put back, which ends every process. It is a swap of layers, and takes no longer than looking.

A command that outlives the worker is the exception (`dsec.worker.episodes.processes`): as long as its process is known,
it is that process that changes the files, and they are what its round began with plus its work.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection

from dsec.episode.identity import check_episode_id
from dsec.model.state import CheckpointInfo, CheckpointRequest
from dsec.service.port import SandboxService
from dsec.service.state import StateService
from dsec.worker.episodes.processes import marked_id


class SandboxWorkspace:
    """The files of one sandbox. Implements `dsec.worker.episodes.ports.Workspace`.

    Args:
        service: where the sandbox is.
        state: where its checkpoints are.
        sandbox_id: the sandbox; it belongs to this episode alone.
        episode_id: whose versions these are; checkpoints of others are left alone.
        random_bytes: makes the names of checkpoints differ.
    """

    def __init__(
        self,
        service: SandboxService,
        state: StateService,
        sandbox_id: str,
        episode_id: str,
        *,
        random_bytes: Callable[[int], bytes] = secrets.token_bytes,
    ) -> None:
        self._service = service
        self._state = state
        self._sandbox_id = sandbox_id
        self._prefix = f"{check_episode_id(episode_id)}.r"
        self._random_bytes = random_bytes

    async def version(self) -> str | None:
        """Return the version that a known process began with; None where there is no such process: see the module."""
        begun = [marked_id(process) for process in await self._service.list_processes(self._sandbox_id)]
        numbers = [number for number in map(self._round_of, begun) if number is not None]
        if not numbers:
            return None
        saved = [
            (number, each.created_at_s, each.name)
            for each in await self._own()
            if (number := self._round_of(each.name)) is not None and number < max(numbers)
        ]
        return max(saved)[2] if saved else None

    def _round_of(self, name: str) -> int | None:
        """Return the number of the round in the name of a version or the id of an operation of this episode."""
        number = name.removeprefix(self._prefix).partition(".")[0]
        return int(number) if name.startswith(self._prefix) and number.isdecimal() else None

    async def versions(self) -> Collection[str]:
        """Return the names of the checkpoints of this episode."""
        return [each.name for each in await self._own()]

    async def save(self, number: int) -> str:
        """Make a checkpoint and return its name.

        Raises:
            DsecError: it could not be made; nothing is left of it.
        """
        name = f"{self._prefix}{number}.{self._random_bytes(4).hex()}"
        return (await self._state.checkpoint(self._sandbox_id, CheckpointRequest(name=name))).name

    async def save_first(self, version: str) -> None:
        """Save what the episode found as its first version, unless that was done before.

        Raises:
            DsecError: it could not be saved.
        """
        if version not in await self.versions():
            await self._state.checkpoint(self._sandbox_id, CheckpointRequest(name=version))

    async def restore(self, version: str) -> None:
        """Go back to a checkpoint; every process of the sandbox ends.

        Raises:
            DsecError: the sandbox is as before.
        """
        await self._service.rollback(self._sandbox_id, snapshot=version)

    async def keep_only(self, versions: Collection[str]) -> None:
        """Remove the other checkpoints of this episode, those that a death left unnamed among them."""
        for info in await self._own():
            if info.name not in versions:
                await self._state.remove_checkpoint(self._sandbox_id, info.checkpoint_id)

    async def _own(self) -> list[CheckpointInfo]:
        listed = await self._state.list_checkpoints(self._sandbox_id)
        return [info for info in listed if info.name.startswith(self._prefix)]
