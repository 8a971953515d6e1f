"""What a verification of an image finds, and how it is asked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dsec.base.errors import DsecError, ObjectNotFoundError
from dsec.model.image_work import ImageFinding

Finding = ImageFinding

Progress = Callable[[str, int, int], None]
"""Told which part is being read, how many of its pieces were, and of how many; from the event loop."""


def untold(part: str, done: int, total: int) -> None:
    """Tell nobody."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyOptions:
    """How an image is verified.

    Attributes:
        node: the id of this node, for findings about this host.
        store_url: the object store of layers that name no origin.
        full: read also every chunk that the origins of its layers have.
        repair: make good what can be.
        progress: told now and then.
    """

    node: str = "this host"
    store_url: str = ""
    full: bool = False
    repair: bool = False
    progress: Progress = untold


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A layer that is looked at.

    Attributes:
        part: what it is called: ``layer-1``.
        digest: its digest.
    """

    part: str
    digest: str

    def good(self, detail: str, *, node: str, suffix: str = "", repaired: bool = False) -> Finding:
        """Return the finding that something about it is right."""
        part = f"{self.part}{suffix}"
        return Finding(part=part, ok=True, detail=detail, node=node, layer=self.digest, repaired=repaired)

    def bad(self, detail: str, *, node: str, advice: str, suffix: str = "") -> Finding:
        """Return the finding that something about it is wrong."""
        part = f"{self.part}{suffix}"
        return Finding(part=part, ok=False, detail=detail, advice=advice, node=node, layer=self.digest)


def words(error: DsecError) -> str:
    """Return what an error says, on one line."""
    if isinstance(error, ObjectNotFoundError):
        return "it is not there"
    text = f"{error.brief} ({error.detail})" if error.detail else error.brief
    return " ".join(text.split())


def some(items: list[str], most: int = 5) -> str:
    """Return the first few of several things, and that there are more."""
    return "; ".join(items[:most]) + (f"; and {len(items) - most} more" if len(items) > most else "")
