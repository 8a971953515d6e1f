"""Whoever waits for an object store that does not answer is told so."""

from __future__ import annotations

import anyio
import pytest

from dsec.cli import image_sharing
from dsec.cli.context import Options
from dsec.stores import opening
from dsec.stores.objects import DEFAULT_TIMEOUT_S, ObjectInfo, ObjectStore
from dsec.stores.objects_memory import MemoryObjectStore


class _Silent(MemoryObjectStore):
    async def head(self, key: str, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> ObjectInfo | None:
        await anyio.sleep(0.05)
        return await super().head(key, timeout_s=timeout_s)


@pytest.mark.parametrize("store", [MemoryObjectStore, _Silent])
def test_a_store_that_does_not_answer_is_named_meanwhile(
    store: type[MemoryObjectStore], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(opening, "open_store", lambda url: store())
    monkeypatch.setattr(image_sharing, "_PATIENCE_S", 0.01 if store is _Silent else 60.0)

    async def act(objects: ObjectStore) -> str:
        return objects.url

    assert image_sharing.with_objects(Options(), "memory:", act) == "memory:"
    assert ("memory: does not answer" in capsys.readouterr().err) == (store is _Silent)
