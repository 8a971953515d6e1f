"""A link of a known rate, and the store behind it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dsec.base.errors import ObjectNotFoundError
from dsec.base.units import MIB
from dsec.bench.shaped import shaped_store
from dsec.stores.opening import open_store

pytestmark = [pytest.mark.anyio, pytest.mark.root, pytest.mark.slow]


async def test_what_is_fetched_comes_no_faster_than_the_link_lets_it_and_nothing_is_left(tmp_path: Path) -> None:
    environment = dict(os.environ)
    with shaped_store(tmp_path / "far") as store:
        store.link.shape(100_000_000)
        # A busy host makes it slower and nothing makes it faster; the bucket is full at the beginning.
        assert store.measure(MIB) < 130_000_000
        (store.directory / "layers").mkdir()
        (store.directory / "layers/some").write_bytes(b"0123456789")
        objects = open_store(store.url)
        assert await objects.get_range("layers/some", 3, 4) == b"3456"
        assert await objects.get_range("layers/some", 3, 100) == b"3456789"
        assert await objects.get_range("layers/some", 10, 1) == b""
        assert await objects.get("layers/some") == b"0123456789"
        assert await objects.head("layers/none") is None
        with pytest.raises(ObjectNotFoundError):
            await objects.get("layers/none")
        assert await objects.put("roots/a-b", b"1", if_absent=True)
        assert not await objects.put("roots/a-b", b"2", if_absent=True)
        assert [(info.key, info.size_bytes) async for info in objects.list("roots/")] == [("roots/a-b", 1)]
        await objects.delete(["roots/a-b", "roots/none"])
        assert [info.key async for info in objects.list("roots/")] == []
    assert dict(os.environ) == environment
    assert not Path(store.link.namespace.path).exists()
