"""All sandboxes of the node, by id."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass

from dsec.base.errors import SandboxMovedError, SandboxNotFoundError, WrongNodeError
from dsec.base.ids import named_node
from dsec.model.sandbox import SandboxFilter, SandboxState
from dsec.node.sandbox import Sandbox
from dsec.stores.port import REMEMBERED_IDS


@dataclass(frozen=True, slots=True)
class Whereabouts:
    """Where a sandbox went: the node's id, and where clients reach it, if that is known."""

    node: str
    url: str


class Registry:
    """Find sandboxes. Removed ids are remembered (the last 65,536), so that removing twice is removing once; and those
    that moved away, so that who asks for one is told where it is."""

    def __init__(self, node_id: str) -> None:
        self._node_id = node_id
        self._own_prefix = f"sbx-{node_id}-"
        self._sandboxes: dict[str, Sandbox] = {}
        self._removed: OrderedDict[str, None] = OrderedDict()
        self._moved: OrderedDict[str, Whereabouts] = OrderedDict()

    def __iter__(self) -> Iterator[Sandbox]:
        return iter(tuple(self._sandboxes.values()))

    def add(self, sandbox: Sandbox) -> None:
        self._sandboxes[sandbox.sandbox_id] = sandbox
        self._removed.pop(sandbox.sandbox_id, None)

    def get(self, sandbox_id: str) -> Sandbox | None:
        return self._sandboxes.get(sandbox_id)

    def find(self, sandbox_id: str) -> Sandbox:
        """Return the sandbox.

        Raises:
            SandboxMovedError: it was here, and the error tells where it is.
            WrongNodeError: its id names another node.
            SandboxNotFoundError: there is none.
        """
        sandbox = self._sandboxes.get(sandbox_id)
        if sandbox is None:
            self.check_own(sandbox_id)
            raise SandboxNotFoundError(
                f"this node has no sandbox {sandbox_id[:80]!r}", resolution="`dsec sandbox ls` shows those it has"
            )
        return sandbox

    def check_own(self, sandbox_id: str) -> None:
        """Raise `SandboxMovedError` for the id of a sandbox that left, and `WrongNodeError` for one that names another
        node; a sandbox that came from there is here."""
        self.check_not_moved(sandbox_id)
        named = named_node(sandbox_id)
        if named is not None and named != self._node_id and sandbox_id not in self._sandboxes:
            raise WrongNodeError(
                f"{sandbox_id} names the node {named}; this is {self._node_id}",
                resolution="ask the node that the id names, or leave the id out for a new one",
            )

    def check_not_moved(self, sandbox_id: str) -> None:
        """Raise `SandboxMovedError` for the id of a sandbox that left. One that is here answers for itself."""
        whereabouts = self.moved_to(sandbox_id)
        if whereabouts is not None:
            raise moved_error(sandbox_id, whereabouts)

    def moved_to(self, sandbox_id: str) -> Whereabouts | None:
        """Return where a sandbox went that was here; None: it is here, or never was."""
        return None if sandbox_id in self._sandboxes else self._moved.get(sandbox_id)

    def remember_moved(self, sandbox_id: str, whereabouts: Whereabouts) -> None:
        """Tell from now on where a sandbox went; until it comes back."""
        self._moved[sandbox_id] = whereabouts
        if len(self._moved) > REMEMBERED_IDS:
            self._moved.popitem(last=False)

    def forget_moved(self, sandbox_id: str) -> None:
        """It came back."""
        self._moved.pop(sandbox_id, None)

    def leave_out(self, sandbox: Sandbox) -> None:
        """Take a sandbox from the registry that never was this node's to give."""
        sandbox.forgotten = True
        if self._sandboxes.get(sandbox.sandbox_id) is sandbox:
            del self._sandboxes[sandbox.sandbox_id]

    def forget(self, sandbox: Sandbox) -> None:
        self.leave_out(sandbox)
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


def moved_error(sandbox_id: str, whereabouts: Whereabouts) -> SandboxMovedError:
    """Return the error that tells where a sandbox went."""
    place = f"ask the node {whereabouts.node}" + (f" at {whereabouts.url}" if whereabouts.url else "")
    error = SandboxMovedError(f"{sandbox_id} has moved to the node {whereabouts.node}", resolution=place)
    error.url = whereabouts.url
    return error
