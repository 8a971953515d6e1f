"""The conformance suite of moving sandboxes: what holds for every pair of nodes, and for every way to them.

Use it by inheriting in a test module and overriding the `pair` fixture.
"""

from __future__ import annotations

from dataclasses import dataclass

import anyio
import pytest

from dsec.base.errors import (
    DsecError,
    InvalidRequestError,
    InvalidStateError,
    SandboxExitedError,
    SandboxMovedError,
    SandboxNotFoundError,
)
from dsec.model.process import CommandRequest
from dsec.model.sandbox import Lifetime, SandboxSpec, SandboxState
from dsec.model.state import CheckpointRequest, MigrationReport, MigrationRequest
from dsec.sdk.state import state_of
from dsec.service.port import SandboxService

_FILE = "/tmp/step"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two nodes that are each other's peers.

    Attributes:
        here, there: ways to them, which may follow a sandbox that moved.
        source, target: their ids.
    """

    here: SandboxService
    there: SandboxService
    source: str
    target: str


class MigrationSuite:
    """Tests that every pair of nodes passes.

    Attributes:
        image: what sandboxes are made from; both nodes have it.
    """

    pytestmark = pytest.mark.anyio
    image = "python"

    @pytest.fixture
    async def pair(self) -> Pair:
        raise NotImplementedError

    @pytest.fixture
    async def box(self, pair: Pair) -> str:
        spec = SandboxSpec(image=self.image, seed=7, env={"A": "b"}, metadata={"task": "fix-42"})
        return (await pair.here.create(spec)).sandbox_id

    async def _move(self, pair: Pair, box: str) -> MigrationReport:
        return await state_of(pair.here).migrate(box, MigrationRequest(node=pair.target))

    async def _read(self, service: SandboxService, box: str) -> bytes:
        return b"".join([piece async for piece in service.read_file(box, _FILE)])

    async def test_files_and_checkpoints_are_there_and_the_report_tells_what_it_took(
        self, pair: Pair, box: str
    ) -> None:
        await pair.here.write_file(box, _FILE, b"one")
        point = await state_of(pair.here).checkpoint(box, CheckpointRequest(name="one"))
        await pair.here.write_file(box, _FILE, b"two")
        report = await self._move(pair, box)
        assert (report.source, report.target, report.sandbox.sandbox_id) == (pair.source, pair.target, box)
        assert report.rounds == len(report.copied_bytes) >= 3
        assert 0 < report.downtime_s < report.duration_s
        assert await self._read(pair.there, box) == b"two"
        (listed,) = await state_of(pair.there).list_checkpoints(box)
        assert (listed.checkpoint_id, listed.name, listed.is_current) == (point.checkpoint_id, "one", True)
        await pair.there.rollback(box, snapshot="one")
        assert await self._read(pair.there, box) == b"one"

    async def test_it_is_who_it_was(self, pair: Pair, box: str) -> None:
        await pair.here.extend(box, Lifetime(idle_timeout_s=None, maximum_s=1000))
        before = await pair.here.inspect(box)
        await self._move(pair, box)
        after = await pair.there.inspect(box)
        assert after.state is SandboxState.READY
        assert (after.spec, after.created_at_s, after.node) == (before.spec, before.created_at_s, pair.target)
        assert after.generation == before.generation + 1
        assert after.expires_in_s is not None
        assert 0 < after.expires_in_s <= 1000
        result = await pair.there.run(box, CommandRequest(argv=("sh", "-c", "echo $A $DSEC_SEED")))
        assert result.stdout == b"b 7\n"

    async def test_who_asks_where_it_was_is_told_or_led_where_it_is(self, pair: Pair, box: str) -> None:
        await pair.here.write_file(box, _FILE, b"content")
        await self._move(pair, box)
        try:
            assert await self._read(pair.here, box) == b"content"
        except SandboxMovedError as error:
            assert pair.target in str(error)  # noqa: PT017 - who follows sees no error.

    async def test_what_runs_ends_and_is_not_begun_again(self, pair: Pair, box: str) -> None:
        failures: list[DsecError] = []

        async def run() -> None:
            script = f"echo begun >> {_FILE}; sleep 1000"
            try:
                await pair.here.run(box, CommandRequest(argv=("sh", "-c", script)))
            except DsecError as error:
                failures.append(error)

        await pair.here.start_process(box, CommandRequest(argv=("sleep", "1000")))
        async with anyio.create_task_group() as group:
            group.start_soon(run)
            await self._wait_written(pair, box)
            await self._move(pair, box)
        assert [type(error) for error in failures] == [SandboxExitedError]
        assert await pair.there.list_processes(box) == []
        assert await self._read(pair.there, box) == b"begun\n"

    async def _wait_written(self, pair: Pair, box: str) -> None:
        with anyio.fail_after(60):
            while True:
                try:
                    if await self._read(pair.here, box) == b"begun\n":
                        return
                except DsecError:
                    pass
                await anyio.sleep(0.01)

    async def test_it_comes_back(self, pair: Pair, box: str) -> None:
        await pair.here.write_file(box, _FILE, b"there")
        await self._move(pair, box)
        await pair.there.write_file(box, _FILE, b"and back")
        report = await state_of(pair.there).migrate(box, MigrationRequest(node=pair.source))
        assert report.sandbox.node == pair.source
        assert await self._read(pair.here, box) == b"and back"
        await pair.here.remove(box)
        with pytest.raises(SandboxNotFoundError):
            await pair.there.inspect(box)

    async def test_strangers_and_the_node_itself_are_no_targets(self, pair: Pair, box: str) -> None:
        await pair.here.write_file(box, _FILE, b"content")
        for node in ("n0b0d", pair.source):
            with pytest.raises(InvalidRequestError):
                await state_of(pair.here).migrate(box, MigrationRequest(node=node))
        assert await self._read(pair.here, box) == b"content"

    async def test_what_is_over_does_not_move(self, pair: Pair, box: str) -> None:
        await pair.here.stop(box)
        with pytest.raises(InvalidStateError):
            await self._move(pair, box)
