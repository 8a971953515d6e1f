"""What a node does with copies that it was sent: leases, doubt, owners who are faster, processes that die, lies."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import anyio
import msgspec
import pytest

from dsec.base.errors import (
    AlreadyExistsError,
    CapabilityMissingError,
    DsecError,
    HookFailedError,
    HostDiskFullError,
    ImageNotFoundError,
    InvalidRequestError,
    InvalidStateError,
    MigrationFailedError,
    NodeUnavailableError,
    SandboxNotFoundError,
    UnknownOutcomeError,
)
from dsec.images.memory import MemoryImages
from dsec.lifecycle.migration import SourcePhase, TargetPhase
from dsec.model.image import ImageConfig, StateHooks
from dsec.model.sandbox import SandboxSpec, SandboxState
from dsec.model.state import CheckpointRequest, ForkRequest, MigrationRequest
from dsec.node import arrival
from dsec.node.node import Node
from dsec.node.state import migration_source
from dsec.node.state.migration_offer import offer_of
from dsec.node.state.migration_target import Migrations
from dsec.service.content import ByteStream
from dsec.service.migration import (
    PRESENT,
    MigrationCommit,
    MigrationOffer,
    MigrationRound,
    MovedCheckpoint,
    Part,
    RoundReceipt,
)
from dsec.testing.crash_points import settle
from dsec.testing.faults import check_no_leak
from dsec.testing.fleet import Fleet, fleet_of

pytestmark = pytest.mark.anyio
BOX, HERE, THERE = "sbx-box", "nodea", "nodeb"
LEASE_S = 31.0


@pytest.fixture
async def fleet() -> AsyncIterator[Fleet]:
    async with fleet_of(HERE, THERE) as fleet:
        await fleet.nodes[HERE].create(SandboxSpec(), sandbox_id=BOX)
        await fleet.nodes[HERE].write_file(BOX, "f", b"content")
        yield fleet


@pytest.fixture
def here(fleet: Fleet) -> Node:
    return fleet.nodes[HERE]


@pytest.fixture
def there(fleet: Fleet) -> Node:
    return fleet.nodes[THERE]


async def move(node: Node) -> None:
    await node.state.migrate(BOX, MigrationRequest(node=THERE))


async def prepared(fleet: Fleet) -> None:
    """The source hears nothing after the commit, and gives up; its abort is lost, too."""
    fleet.wire.cut = ("answer to commit", "abort")
    with pytest.raises(NodeUnavailableError):
        await move(fleet.nodes[HERE])
    await settle()
    assert (await fleet.nodes[THERE].inspect(BOX)).state is SandboxState.MIGRATING


async def unheard(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """The source has decided, and its word does not arrive before it stops."""
    monkeypatch.setattr(migration_source, "ACKNOWLEDGE_S", 0.01)
    fleet.wire.cut = ("release",)
    with pytest.raises(UnknownOutcomeError, match="handed over"):
        await move(fleet.nodes[HERE])
    await fleet.stop(HERE)


async def look_later(fleet: Fleet, name: str = THERE) -> None:
    fleet.hosts[name].clock.advance(LEASE_S)
    await fleet.nodes[name].migrations.look()


async def nothing_is_left(fleet: Fleet, name: str = THERE) -> None:
    await settle()
    await check_no_leak(fleet.hosts[name], fleet.nodes[name])
    assert not fleet.hosts[name].layers.names()
    assert not fleet.hosts[name].exports.names()


async def test_a_copy_in_doubt_answers_nobody_and_goes_when_its_source_says_so(
    fleet: Fleet, there: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrival, "LONGEST_WAIT_S", 0.01)
    await prepared(fleet)
    with pytest.raises(NodeUnavailableError, match="waits"):
        await there.write_file(BOX, "f", b"x")
    await there.migrations.look()
    assert (await there.inspect(BOX)).state is SandboxState.MIGRATING
    await look_later(fleet)
    await nothing_is_left(fleet)
    assert not fleet.hosts[THERE].journal.load().migrations


async def test_who_asks_for_a_copy_before_the_word_of_its_source_waits_for_that(
    fleet: Fleet, there: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    await unheard(fleet, monkeypatch)
    async with anyio.create_task_group() as group:
        group.start_soon(there.write_file, BOX, "g", b"early")
        group.start_soon(there.state.checkpoint, BOX)
        await settle()
        await fleet.start(HERE)
        await look_later(fleet)
    assert b"".join([piece async for piece in there.read_file(BOX, "g")]) == b"early"
    assert len(await there.state.list_checkpoints(BOX)) == 1


@pytest.mark.parametrize(
    ("by", "expected"),
    [
        ("its source", SandboxNotFoundError),
        ("its owner", InvalidStateError),
        ("the node's end", NodeUnavailableError),
    ],
)
async def test_who_waits_for_a_copy_that_does_not_come_is_told(
    fleet: Fleet, there: Node, by: str, expected: type[DsecError]
) -> None:
    await prepared(fleet)

    async def write() -> None:
        with pytest.raises(expected):
            await there.write_file(BOX, "g", b"early")

    async with anyio.create_task_group() as group:
        group.start_soon(write)
        await settle()
        if by == "its source":
            await look_later(fleet)
        elif by == "its owner":
            await there.remove(BOX)
        else:
            await there.aclose()


async def test_a_copy_in_doubt_waits_for_a_source_that_does_not_answer(fleet: Fleet, there: Node) -> None:
    await prepared(fleet)
    await fleet.stop(HERE)
    for _ in range(3):
        await look_later(fleet)
    assert (await there.inspect(BOX)).state is SandboxState.MIGRATING
    await there.remove(BOX)
    await fleet.start(HERE)
    await look_later(fleet)
    await nothing_is_left(fleet)
    assert not fleet.hosts[THERE].journal.load().migrations
    assert (await fleet.nodes[HERE].inspect(BOX)).state is SandboxState.READY


async def test_a_copy_in_doubt_takes_over_when_its_source_says_so(
    fleet: Fleet, there: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    await unheard(fleet, monkeypatch)
    await fleet.start(HERE)
    await look_later(fleet)
    assert (await there.inspect(BOX)).state is SandboxState.READY
    assert b"".join([piece async for piece in there.read_file(BOX, "f")]) == b"content"


async def test_processes_of_a_copy_that_died_while_it_waited_begin_anew(
    fleet: Fleet, there: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    await unheard(fleet, monkeypatch)
    await fleet.hosts[THERE].runtime.instance(f"{BOX}-g1").end_init("killed")
    await fleet.start(HERE)
    await look_later(fleet)
    assert (await there.inspect(BOX)).state is SandboxState.READY
    await there.write_file(BOX, "g", b"x")
    assert b"".join([piece async for piece in there.read_file(BOX, "f")]) == b"content"
    await settle()
    await check_no_leak(fleet.hosts[THERE], there)


async def test_a_copy_that_its_owner_removed_is_acknowledged_as_gone(
    fleet: Fleet, there: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    await unheard(fleet, monkeypatch)
    await there.remove(BOX)
    fleet.wire.cut = ()
    await fleet.start(HERE)
    await anyio.sleep(0.01)
    await settle()
    (record,) = fleet.hosts[HERE].journal.load().migrations
    assert record.source is SourcePhase.MOVED
    (record,) = fleet.hosts[THERE].journal.load().migrations
    assert record.target is TargetPhase.DONE
    await nothing_is_left(fleet)


async def test_a_lease_that_ends_while_the_copy_is_launched_ends_nothing(
    fleet: Fleet, here: Node, there: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer that it is prepared may be what the source decides upon."""
    runtime = fleet.hosts[THERE].runtime
    launch, begun, go_on = runtime.launch, anyio.Event(), anyio.Event()

    async def slow(request: Any) -> Any:
        begun.set()
        await go_on.wait()
        return await launch(request)

    monkeypatch.setattr(runtime, "launch", slow)
    async with anyio.create_task_group() as group:
        group.start_soon(move, here)
        await begun.wait()
        fleet.hosts[THERE].clock.advance(LEASE_S)
        group.start_soon(there.migrations.look)
        await settle()
        go_on.set()
    assert (await there.inspect(BOX)).state is SandboxState.READY
    await settle()
    await check_no_leak(fleet.hosts[THERE], there)


async def test_a_source_that_has_nothing_to_send_keeps_its_lease(fleet: Fleet, here: Node, there: Node) -> None:
    offer = an_offer(here)
    await there.migrations.offer(offer)
    for _ in range(3):
        fleet.hosts[THERE].clock.advance(LEASE_S / 2)
        await there.migrations.status(offer.migration_id)
        await there.migrations.look()
    assert fleet.hosts[THERE].journal.load().migrations
    await look_later(fleet)
    await nothing_is_left(fleet)
    assert not fleet.hosts[THERE].journal.load().migrations


async def test_a_target_that_takes_too_long_is_not_waited_for_in_the_pause(
    fleet: Fleet, here: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hang(self: Migrations, migration_id: str, commit: MigrationCommit) -> None:
        await anyio.sleep_forever()

    monkeypatch.setattr(Migrations, "commit", hang)
    monkeypatch.setattr(migration_source, "LONGEST_PAUSE_S", 0.05)
    with pytest.raises(MigrationFailedError, match="stood still"):
        await move(here)
    await here.write_file(BOX, "f", b"on it goes")
    await nothing_is_left(fleet)


async def test_a_source_that_sends_for_ever_is_not_waited_for(fleet: Fleet, here: Node, there: Node) -> None:
    offer = an_offer(here)
    await there.migrations.offer(offer)
    fleet.hosts[THERE].clock.advance(3601)
    await there.migrations.status(offer.migration_id)
    await there.migrations.look()
    await nothing_is_left(fleet)
    assert not fleet.hosts[THERE].journal.load().migrations


# -- hooks ----------------------------------------------------------------------------------------------------------

EXPORT = ("sh", "-c", "cat /tmp/memory")
IMPORT = ("sh", "-c", "cat > /tmp/remembered")


def hooked(**hooks: Any) -> Callable[[], MemoryImages]:
    def images() -> MemoryImages:
        made = MemoryImages()
        layers = [layer.digest for layer in made.get("python").layers]
        made.add_image("hooked", layers, ImageConfig(hooks=StateHooks(**hooks)), source="test")
        return made

    return images


async def remembered(node: Node) -> bytes:
    return b"".join([chunk async for chunk in node.read_file(BOX, "/tmp/remembered")])


async def test_what_hooks_exported_moves_with_the_sandbox_and_with_its_checkpoints() -> None:
    async with fleet_of(HERE, THERE, images=hooked(export_state=EXPORT, import_state=IMPORT)) as fleet:
        here, there = fleet.nodes[HERE], fleet.nodes[THERE]
        await here.create(SandboxSpec(image="hooked"), sandbox_id=BOX)
        await here.write_file(BOX, "/tmp/memory", b"old thoughts")
        await here.state.checkpoint(BOX, CheckpointRequest(name="a"))
        await here.write_file(BOX, "/tmp/memory", b"thoughts")
        await move(here)
        assert await remembered(there) == b"thoughts"
        assert (await there.state.list_checkpoints(BOX))[0].exported_bytes == 12
        await there.rollback(BOX, snapshot="a")
        assert await remembered(there) == b"old thoughts"
        await settle()
        await check_no_leak(fleet.hosts[THERE], there)
        await nothing_is_left(fleet, HERE)


@pytest.mark.parametrize(
    "hooks",
    [
        {"export_state": ("sh", "-c", "exit 3")},
        {"export_state": ("sleep", "100"), "timeout_s": 0.05},
        {"export_state": EXPORT, "import_state": ("sh", "-c", "exit 4")},
    ],
)
async def test_a_hook_that_fails_on_either_side_lets_the_sandbox_go_on(hooks: dict[str, Any]) -> None:
    async with fleet_of(HERE, THERE, images=hooked(**hooks)) as fleet:
        here = fleet.nodes[HERE]
        await here.create(SandboxSpec(image="hooked"), sandbox_id=BOX)
        await here.write_file(BOX, "/tmp/memory", b"thoughts")
        with pytest.raises(HookFailedError):
            await move(here)
        await here.write_file(BOX, "/tmp/memory", b"more")
        await nothing_is_left(fleet)
        await check_no_leak(fleet.hosts[HERE], here)


# -- lies -----------------------------------------------------------------------------------------------------------


def an_offer(node: Node, **changes: Any) -> MigrationOffer:
    sandbox = node._core.registry.find(BOX)
    return msgspec.structs.replace(offer_of(node._core, sandbox, "mig-0123456789abcdef"), **changes)


CHECKPOINT = MovedCheckpoint(checkpoint_id="ckp-0123456789")
LIES: dict[str, tuple[dict[str, Any], type[DsecError]]] = {
    "version": ({"version": 2}, InvalidRequestError),
    "id": ({"migration_id": "mig-../../../etc/pas"}, InvalidRequestError),
    "no-id": ({"migration_id": "0123456789abcdef"}, InvalidRequestError),
    "sandbox": ({"sandbox_id": "sbx-../../box"}, InvalidRequestError),
    "encoding": ({"encoding": "tar"}, CapabilityMissingError),
    "layers": ({"layers": ("sha256:" + "0" * 64,)}, ImageNotFoundError),
    "generation": ({"generation": -1}, InvalidRequestError),
    "first-generation": ({"first_generation": 7}, InvalidRequestError),
    "lifetime": ({"remaining_s": float("nan")}, InvalidRequestError),
    "size": ({"written_bytes": 1 << 50}, HostDiskFullError),
    "negative": ({"written_bytes": -1}, InvalidRequestError),
    "checkpoint": ({"checkpoints": (MovedCheckpoint(checkpoint_id="ckp-../x"),)}, InvalidRequestError),
    "twice": ({"checkpoints": (CHECKPOINT, CHECKPOINT)}, InvalidRequestError),
    "orphan": ({"checkpoints": (msgspec.structs.replace(CHECKPOINT, parent="ckp-x"),)}, InvalidRequestError),
    "current": ({"current": "ckp-x"}, InvalidRequestError),
    "text": ({"parent": "x" * 10_000}, InvalidRequestError),
}


@pytest.mark.parametrize("lie", LIES)
async def test_an_offer_that_lies_is_refused_and_leaves_nothing(
    fleet: Fleet, here: Node, there: Node, lie: str
) -> None:
    changes, error = LIES[lie]
    with pytest.raises(error):
        await there.migrations.offer(an_offer(here, **changes))
    await nothing_is_left(fleet)
    assert not fleet.hosts[THERE].journal.load().migrations


async def test_an_id_is_used_once(fleet: Fleet, here: Node, there: Node) -> None:
    await there.migrations.offer(an_offer(here))
    with pytest.raises(AlreadyExistsError):
        await there.migrations.offer(an_offer(here))
    with pytest.raises(AlreadyExistsError):
        await there.migrations.offer(an_offer(here, migration_id="mig-fedcba9876543210"))
    await there.migrations.abort("mig-0123456789abcdef")
    await nothing_is_left(fleet)


class Bytes(ByteStream):
    """A stream of given pieces, which may end with an error."""

    def __init__(self, *pieces: bytes | DsecError) -> None:
        self._pieces = list(pieces)
        self.closed = False

    async def __anext__(self) -> bytes:
        if not self._pieces:
            raise StopAsyncIteration
        piece = self._pieces.pop(0)
        if isinstance(piece, DsecError):
            raise piece
        return piece

    async def fill(self, pipe: Any) -> int:
        raise NotImplementedError

    async def aclose(self) -> None:
        self.closed = True


async def round_of(there: Node, content: Bytes, **head: Any) -> RoundReceipt:
    fields: dict[str, Any] = {"number": 0, "part": Part.LAYER, "of": PRESENT, **head}
    return await there.migrations.round("mig-0123456789abcdef", MigrationRound(**fields), content)


@pytest.mark.parametrize(
    ("pieces", "head", "error"),
    [
        ((b"noise",), {}, InvalidRequestError),
        ((), {}, InvalidRequestError),
        ((b"no", NodeUnavailableError("it died")), {}, NodeUnavailableError),
        ((b"x",), {"of": "ckp-unknown"}, InvalidRequestError),
        ((b"x",), {"base": "ckp-unknown"}, InvalidRequestError),
        ((b"x",), {"number": 1}, InvalidStateError),
        ((bytes(1 << 20),) * 65, {"part": Part.EXPORT}, DsecError),
    ],
)
async def test_a_round_that_lies_or_breaks_off_leaves_nothing(
    fleet: Fleet, here: Node, there: Node, pieces: tuple[Any, ...], head: dict[str, Any], error: type[DsecError]
) -> None:
    await there.migrations.offer(an_offer(here))
    content = Bytes(*pieces)
    with pytest.raises(error):
        await round_of(there, content, **head)
    assert content.closed
    await there.migrations.abort("mig-0123456789abcdef")
    await nothing_is_left(fleet)
    assert not fleet.hosts[THERE].journal.load().migrations


async def test_a_commit_before_everything_came_is_refused_and_leaves_nothing(
    fleet: Fleet, here: Node, there: Node
) -> None:
    await there.migrations.offer(an_offer(here))
    with pytest.raises(InvalidStateError):
        await there.migrations.release("mig-0123456789abcdef")
    with pytest.raises(InvalidStateError, match="missing"):
        await there.migrations.commit("mig-0123456789abcdef", MigrationCommit(rounds=0))
    await nothing_is_left(fleet)


async def test_a_peer_that_received_something_else_is_not_handed_the_sandbox(
    fleet: Fleet, here: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    receive = Migrations.round

    async def flipped(self: Migrations, migration_id: str, head: MigrationRound, content: ByteStream) -> RoundReceipt:
        receipt = await receive(self, migration_id, head, content)
        return msgspec.structs.replace(receipt, digest="0" * 64)

    monkeypatch.setattr(Migrations, "round", flipped)
    with pytest.raises(MigrationFailedError, match="something else"):
        await move(here)
    await nothing_is_left(fleet)
    await here.write_file(BOX, "f", b"on it goes")


async def test_a_child_and_its_parent_move_apart(fleet: Fleet, here: Node, there: Node) -> None:
    """What both need stays for whoever is left."""
    await here.state.checkpoint(BOX, CheckpointRequest(name="a"))
    await here.state.fork(BOX, ForkRequest(sandbox_ids=("sbx-child",), checkpoint="a"))
    await move(here)
    await here.rollback("sbx-child")
    assert b"".join([piece async for piece in here.read_file("sbx-child", "f")]) == b"content"
    await here.state.migrate("sbx-child", MigrationRequest(node=THERE))
    await there.rollback("sbx-child")
    assert b"".join([piece async for piece in there.read_file("sbx-child", "f")]) == b"content"
    await nothing_is_left(fleet, HERE)
    await settle()
    await check_no_leak(fleet.hosts[THERE], there)
