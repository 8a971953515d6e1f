"""What every implementation of `dsec.stores.objects.ObjectStore` does: subclass with a fixture `store`."""

from __future__ import annotations

import anyio
import pytest

from dsec.base.errors import InvalidRequestError, ObjectNotFoundError
from dsec.stores.objects import ObjectStore


class ObjectStoreSuite:
    @pytest.mark.anyio
    async def test_an_object_reads_back_as_it_was_put(self, store: ObjectStore) -> None:
        for content in (b"", b"x", bytes(range(256)) * 8192):
            assert await store.put("a/object", content)
            assert await store.get("a/object") == content

    @pytest.mark.anyio
    async def test_a_put_replaces_what_was_there(self, store: ObjectStore) -> None:
        await store.put("a/object", b"long first content")
        await store.put("a/object", b"second")
        assert await store.get("a/object") == b"second"

    @pytest.mark.anyio
    async def test_put_if_absent_changes_nothing_that_is_there(self, store: ObjectStore) -> None:
        assert await store.put("a/object", b"first", if_absent=True)
        assert not await store.put("a/object", b"second", if_absent=True)
        assert await store.get("a/object") == b"first"

    @pytest.mark.anyio
    async def test_of_many_that_put_if_absent_at_once_one_succeeds(self, store: ObjectStore) -> None:
        won: list[int] = []

        async def put(number: int) -> None:
            if await store.put("a/object", str(number).encode(), if_absent=True):
                won.append(number)

        async with anyio.create_task_group() as group:
            for number in range(8):
                group.start_soon(put, number)
        assert len(won) == 1
        assert await store.get("a/object") == str(won[0]).encode()

    @pytest.mark.anyio
    async def test_a_range_ends_where_the_object_ends(self, store: ObjectStore) -> None:
        await store.put("a/object", b"0123456789")
        assert await store.get_range("a/object", 2, 3) == b"234"
        assert await store.get_range("a/object", 8, 100) == b"89"
        assert await store.get_range("a/object", 10, 1) == b""
        assert await store.get_range("a/object", 99, 1) == b""

    @pytest.mark.anyio
    async def test_what_is_not_there_is_not_found(self, store: ObjectStore) -> None:
        await store.put("a/object", b"x")
        assert await store.head("a/other") is None
        assert await store.head("a") is None
        with pytest.raises(ObjectNotFoundError, match="a/other"):
            await store.get("a/other")
        with pytest.raises(ObjectNotFoundError, match="a/other"):
            await store.get_range("a/other", 0, 1)

    @pytest.mark.anyio
    async def test_a_head_tells_the_size_and_the_order_of_puts(self, store: ObjectStore) -> None:
        await store.put("a/object", b"12345")
        await store.put("a/later", b"")
        first, later = await store.head("a/object"), await store.head("a/later")
        assert first is not None
        assert later is not None
        assert (first.key, first.size_bytes, later.size_bytes) == ("a/object", 5, 0)
        assert first.modified_at_s <= later.modified_at_s

    @pytest.mark.anyio
    async def test_a_list_is_sorted_and_begins_with_its_prefix(self, store: ObjectStore) -> None:
        for key in ("b/2", "a/1", "b/1", "b-x", "b/11", "c/d/e"):
            await store.put(key, b"x")
        assert [info.key async for info in store.list("b/")] == ["b/1", "b/11", "b/2"]
        assert [info.key async for info in store.list("b/1")] == ["b/1", "b/11"]
        assert [info.key async for info in store.list("c")] == ["c/d/e"]
        assert [info.key async for info in store.list("none/")] == []
        assert {info.key async for info in store.list()} == {"b/2", "a/1", "b/1", "b-x", "b/11", "c/d/e"}

    @pytest.mark.anyio
    async def test_a_delete_is_idempotent(self, store: ObjectStore) -> None:
        await store.put("a/object", b"x")
        await store.delete(["a/object", "never/there"])
        await store.delete(["a/object"])
        assert await store.head("a/object") is None
        assert await store.put("a/object", b"again", if_absent=True)

    @pytest.mark.anyio
    @pytest.mark.parametrize("key", ["", "/", "/a", "a/", "a//b", "../a", "a/../b", ".a", "a b", "ä", "a\0", "a" * 600])
    async def test_a_malformed_key_is_refused(self, store: ObjectStore, key: str) -> None:
        with pytest.raises(InvalidRequestError):
            await store.put(key, b"x")
        with pytest.raises(InvalidRequestError):
            await store.get(key)
        with pytest.raises(InvalidRequestError):
            await store.delete([key])
