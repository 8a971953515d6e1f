"""All sandboxes of the node, by id."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from dsec.base.errors import SandboxNotFoundError, WrongNodeError
from dsec.base.ids import named_node
from dsec.model.sandbox import SandboxFilter, SandboxState
from dsec.node.sandbox import Sandbox
from dsec.stores.port import REMEMBERED_IDS


class Registry:
    """Find sandboxes. Removed ids are remembered (the last 65,536), so that removing twice is removing once."""

    def __init__(self, node_id: str) -> None:
        self._node_id = node_id
        self._own_prefix = f"sbx-{node_id}-"
        self._sandboxes: dict[str, Sandbox] = {}
        self._removed: OrderedDict[str, None] = OrderedDict()

    def __iter__(self) -> Iterator[Sandbox]:
        return iter(tuple(self._sandboxes.values()))

    def add(self, sandbox: Sandbox) -> None:
        self._sandboxes[sandbox.sandbox_id] = sandbox
        self._removed.pop(sandbox.sandbox_id, None)

    def get(self, sandbox_id: str) -> Sandbox | None:
        return self._sandboxes.get(sandbox_id)

    def find(self, sandbox_id: str) -> Sandbox:
        """Return the sandbox. Raises `SandboxNotFoundError`, or `WrongNodeError` for one that is elsewhere."""
        sandbox = self._sandboxes.get(sandbox_id)
        if sandbox is None:
            self.check_own(sandbox_id)
            raise SandboxNotFoundError(
                f"this node has no sandbox {sandbox_id[:80]!r}", resolution="`dsec sandbox ls` shows those it has"
            )
        return sandbox

    def check_own(self, sandbox_id: str) -> None:
        """Raise `WrongNodeError` for an id that names another node."""
        named = named_node(sandbox_id)
        if named is not None and named != self._node_id:
            raise WrongNodeError(
                f"{sandbox_id} names the node {named}; this is {self._node_id}",
                resolution="ask the node that the id names, or leave the id out for a new one",
            )

    def forget(self, sandbox: Sandbox) -> None:
        sandbox.forgotten = True
        if self._sandboxes.get(sandbox.sandbox_id) is sandbox:
            del self._sandboxes[sandbox.sandbox_id]
        self.remember_removed(sandbox.sandbox_id)

    def remember_removed(self, sandbox_id: str) -> None:
        self._removed[sandbox_id] = None
        if len(self._removed) > REMEMBERED_IDS:
            self._removed.popitem(last=False)

    def was_known(self, sandbox_id: str) -> bool:
        """Whether this node once had the id: it removed it, or it names this node and so was made here."""
        return sandbox_id in self._removed or sandbox_id.startswith(self._own_prefix)

    def select(self, query: SandboxFilter) -> list[Sandbox]:
        """Return the sandboxes that fit, the oldest first."""
        wanted = frozenset(query.states) or frozenset(SandboxState) - {SandboxState.STOPPED}
        pairs = query.metadata.items()
        found = [
            sandbox
            for sandbox in self._sandboxes.values()
            if sandbox.state in wanted and pairs <= sandbox.record.spec.metadata.items()
        ]
        return sorted(found, key=lambda sandbox: (sandbox.record.created_wall_s, sandbox.sandbox_id))
