"""The fake conforms."""

from __future__ import annotations

from typing import cast

import pytest

from dsec.state.memory import Contents, MemoryWritableLayers
from dsec.state.port import WritableLayer
from dsec.testing.layers_suite import Subject, WritableLayersSuite


class GuestInMemory:
    def __init__(self, contents: Contents) -> None:
        self.contents = contents

    def write(self, layer: WritableLayer, name: str, data: bytes) -> None:
        self.contents[layer.upper][name] = data

    def read(self, layer: WritableLayer) -> dict[str, bytes]:
        return cast(dict[str, bytes], dict(self.contents[layer.upper]))


class TestMemory(WritableLayersSuite):
    @pytest.fixture
    def subject(self) -> Subject:
        contents: Contents = {}
        return Subject(MemoryWritableLayers(contents), GuestInMemory(contents))
