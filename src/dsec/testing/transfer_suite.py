"""The conformance suite of layers that travel: `WritableLayers.send` and `receive`.

A test module subclasses `TransferSuite` and gives two stores, as `here` and `there`.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from dsec.base.errors import InvalidRequestError, SandboxDiskFullError, SnapshotNotFoundError
from dsec.state.port import WritableLayers
from dsec.testing.layers_suite import QUOTA_BYTES, Subject


@contextmanager
def sending(layers: WritableLayers, checkpoint: str, parent: str | None) -> Iterator[int]:
    """Send in a thread; give the end of a pipe from which it can be read."""
    reading, writing = os.pipe()

    def send() -> None:
        try:
            layers.send(checkpoint, parent, writing)
        except BrokenPipeError:
            pass  # The test reads no more.
        finally:
            os.close(writing)

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield reading
    finally:
        os.close(reading)
        thread.join()


def sent(layers: WritableLayers, checkpoint: str, parent: str | None = None) -> bytes:
    """Return a whole stream."""
    with sending(layers, checkpoint, parent) as fd, open(fd, "rb", closefd=False) as file:
        return file.read()


def receive_bytes(
    layers: WritableLayers, name: str, data: bytes, *, base: str | None = None, quota_bytes: int | None = None
) -> None:
    """Receive a stream that was kept."""
    fd = os.memfd_create("stream")
    try:
        os.write(fd, data)
        os.lseek(fd, 0, os.SEEK_SET)
        layers.receive(name, fd, base=base, quota_bytes=quota_bytes)
    finally:
        os.close(fd)


class TransferSuite:
    """Tests that every driver whose layers travel passes."""

    @pytest.fixture
    def here(self) -> Subject:
        raise NotImplementedError

    @pytest.fixture
    def there(self) -> Subject:
        raise NotImplementedError

    def test_both_ends_spell_layers_alike(self, here: Subject, there: Subject) -> None:
        assert here.layers.encoding == there.layers.encoding != ""

    def test_increments_arrive_in_one_layer(self, here: Subject, there: Subject) -> None:
        layer = here.layers.create("a", quota_bytes=None)
        parent = None
        for number, content in enumerate((b"one", b"two", b"three")):
            here.guest.write(layer, "f", content)
            here.guest.write(layer, f"g{number}", content)
            here.layers.checkpoint("a", f"point{number}")
            here.guest.write(layer, "f", b"later")
            with sending(here.layers, f"point{number}", parent) as fd:
                there.layers.receive("b", fd, base=None, quota_bytes=QUOTA_BYTES)
            parent = f"point{number}"
            found = there.layers.get("b")
            assert found is not None
            expected = {"f": content, **{f"g{each}": (b"one", b"two", b"three")[each] for each in range(number + 1)}}
            assert there.guest.read(found) == expected

    def test_a_layer_that_is_received_can_begin_from_a_checkpoint_that_was(self, here: Subject, there: Subject) -> None:
        layer = here.layers.create("a", quota_bytes=None)
        here.guest.write(layer, "f", b"one")
        here.layers.checkpoint("a", "point")
        branch = here.layers.branch("point", "b", quota_bytes=None)
        here.guest.write(branch, "g", b"two")
        here.layers.checkpoint("b", "now")
        receive_bytes(there.layers, "x", sent(here.layers, "point"))
        there.layers.checkpoint("x", "base")
        receive_bytes(there.layers, "y", sent(here.layers, "now", "point"), base="base")
        found = there.layers.get("y")
        assert found is not None
        assert there.guest.read(found) == {"f": b"one", "g": b"two"}

    def test_what_is_cut_off_is_refused(self, here: Subject, there: Subject) -> None:
        here.guest.write(here.layers.create("a", quota_bytes=None), "f", b"content")
        here.layers.checkpoint("a", "point")
        data = sent(here.layers, "point")
        for length in (0, 1, 10, len(data) // 2, len(data) - 1):
            with pytest.raises(InvalidRequestError):
                receive_bytes(there.layers, f"cut{length}", data[:length])
            there.layers.discard(f"cut{length}")
        with pytest.raises(InvalidRequestError):
            receive_bytes(there.layers, "longer", data + b"x")

    def test_what_is_larger_than_the_quota_is_refused(self, here: Subject, there: Subject) -> None:
        here.guest.write(here.layers.create("a", quota_bytes=None), "f", os.urandom(QUOTA_BYTES + (2 << 20)))
        here.layers.checkpoint("a", "point")
        with sending(here.layers, "point", None) as fd, pytest.raises(SandboxDiskFullError):
            there.layers.receive("b", fd, base=None, quota_bytes=QUOTA_BYTES)
        there.layers.discard("b")
        assert there.layers.names() == frozenset()

    def test_what_does_not_exist_is_not_sent(self, here: Subject) -> None:
        with pytest.raises(SnapshotNotFoundError):
            here.layers.send("none", None, -1)

    def test_a_base_that_does_not_exist_is_refused(self, here: Subject, there: Subject) -> None:
        here.layers.create("a", quota_bytes=None)
        here.layers.checkpoint("a", "point")
        with pytest.raises(SnapshotNotFoundError):
            receive_bytes(there.layers, "b", sent(here.layers, "point"), base="none")
        assert there.layers.names() == frozenset()
