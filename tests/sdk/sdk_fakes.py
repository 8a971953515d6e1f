"""A node of fakes in a state directory."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from dsec.base.clock import SystemClock
from dsec.node.lock import hold_state
from dsec.node.node import Node
from dsec.node.settings import NodeSettings
from dsec.testing.memory_node import MemoryHost


@asynccontextmanager
async def memory_node(settings: NodeSettings) -> AsyncIterator[Node]:
    """Do what `dsec.node.builder.open_node` does, with fakes."""
    with hold_state(Path(settings.state_dir)):
        async with Node.open(MemoryHost().parts(clock=SystemClock())) as node:
            yield node
