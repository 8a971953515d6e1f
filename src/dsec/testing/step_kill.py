"""A node that kills itself at the n-th call of a mechanism: before the call's effect, or right after it.

`python -m dsec.testing.step_kill STEP WHEN ARGUMENT...` is `dsec ARGUMENT...` whose node, once it is armed (from its
first call on, or by SIGUSR1), counts the calls of its ports as `dsec.testing.faults` does in memory, and sends itself
SIGKILL at step STEP. On standard error it names the call. Nothing in the product knows of this: the parts are wrapped
on their way into the node.

A kill by lines (`dsec.testing.countdown`) comes at any instruction and never twice at the same; this one enumerates.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from dsec.node import builder
from dsec.node.node import Node
from dsec.node.parts import NodeParts
from dsec.testing.faults import Faults, wrapped_parts

FROM_THE_START = "start"
ON_SIGNAL = "signal"


class SelfKill(Faults):
    """Counts steps, and ends this process at one of them."""

    def _strike(self) -> None:
        sys.stderr.write(f"killed at step {self.steps}: {self.struck}\n")
        sys.stderr.flush()
        os.kill(os.getpid(), signal.SIGKILL)

    def arm(self, *_: object) -> None:
        """Count from now on. Fit to be a signal handler."""
        self.armed = True


def _wrap_nodes(faults: Faults) -> None:
    """Let every node of this process be made of parts that count."""

    class Watched(Node):
        @classmethod
        @asynccontextmanager
        async def open(cls, parts: NodeParts) -> AsyncIterator[Node]:
            async with Node.open(wrapped_parts(parts, faults)) as node:
                yield node

    vars(builder)["Node"] = Watched


def _main(step: str, when: str, *arguments: str) -> None:
    from dsec.cli.main import main

    faults = SelfKill(kill_at=int(step))
    faults.armed = when == FROM_THE_START
    signal.signal(signal.SIGUSR1, faults.arm)
    _wrap_nodes(faults)
    sys.argv = ["dsec", *arguments]
    main()


if __name__ == "__main__":
    _main(*sys.argv[1:])
