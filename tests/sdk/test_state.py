"""Saved state through the SDK, over HTTP to a node of fakes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dsec import (
    AlreadyExistsError,
    Client,
    DiskFullAction,
    InvalidRequestError,
    Sandbox,
    SnapshotNotFoundError,
)


@pytest.fixture
def client(server_url: str) -> Iterator[Client]:
    with Client(server_url) as client:
        yield client


@pytest.fixture
def box(client: Client) -> Iterator[Sandbox]:
    with client.create("python", seed=7, metadata={"task": "fix-42"}) as box:
        yield box


def test_a_step_is_saved_branched_and_returned_to(box: Sandbox) -> None:
    box.files.write("/tmp/step", b"one")
    point = box.checkpoint()
    children = box.fork(8)
    box.files.write("/tmp/step", b"two")
    assert len({child.sandbox_id for child in children} | {box.sandbox_id}) == 9
    assert {child.files.read("/tmp/step") for child in children} == {b"one"}
    assert box.rollback(point).generation == 1
    assert box.files.read("/tmp/step") == b"one"


def test_children_are_printed_with_their_ids(box: Sandbox) -> None:
    (child,) = box.fork()
    assert repr([child]) == f"[Sandbox({child.sandbox_id!r})]"


def test_a_checkpoint_is_named_by_itself_its_id_or_its_name(box: Sandbox) -> None:
    box.files.write("/tmp/step", b"one")
    point = box.checkpoint(name="snap-001")
    for name in (point, point.checkpoint_id, "snap-001"):
        box.files.write("/tmp/step", b"two")
        box.rollback(name)
        assert box.files.read("/tmp/step") == b"one"
    with pytest.raises(AlreadyExistsError):
        box.checkpoint(name="snap-001")
    (listed,) = box.checkpoints()
    assert listed.is_current
    box.remove_checkpoint(point)
    with pytest.raises(SnapshotNotFoundError):
        box.rollback("snap-001")


def test_a_child_of_a_fork_has_what_it_was_given_and_ends_with_its_block(client: Client, box: Sandbox) -> None:
    point = box.checkpoint()
    (child,) = box.fork(checkpoint=point, seeds=[11], env={"TOKEN": "t"}, metadata={"branch": "b"})
    with child:
        info = child.info()
        assert info.parent == box.sandbox_id
        assert (info.spec.seed, info.spec.env["TOKEN"]) == (11, "t")
        assert info.spec.metadata == {"task": "fix-42", "branch": "b"}
    assert [each.sandbox_id for each in client.list()] == [box.sandbox_id]


def test_asking_again_with_the_same_ids_gives_the_same_children(client: Client, box: Sandbox) -> None:
    first, again = (box.fork(2, sandbox_ids=["sbx-one", "sbx-two"]) for _ in range(2))
    assert [child.sandbox_id for child in first] == [child.sandbox_id for child in again] == ["sbx-one", "sbx-two"]
    assert len(client.list()) == 3


def test_what_a_sandbox_asked_for_when_its_disk_is_full_goes_through(client: Client) -> None:
    with client.create(on_disk_full=DiskFullAction.ROLLBACK) as box:
        assert box.info().spec.on_disk_full is DiskFullAction.ROLLBACK


def test_a_sandbox_is_compared_with_its_clean_state(box: Sandbox) -> None:
    report = box.fingerprint()
    assert report.sandbox_id == box.sandbox_id
    assert report.is_clean is not bool(report.differences)


def test_a_spread_fork_stays_here_where_there_are_no_peers(box: Sandbox) -> None:
    children = box.fork(2, spread=True)
    assert len({child.sandbox_id for child in children}) == 2
    for child in children:
        child.close()


def test_a_sandbox_moves_to_no_stranger(box: Sandbox) -> None:
    with pytest.raises(InvalidRequestError, match="peers"):
        box.migrate("n0de2")
