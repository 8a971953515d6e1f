"""Files of the host as the ends of a transfer, for both halves of the SDK."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from dsec.sdk.bridge import as_async, call
from dsec.service.local import LocalFile, local_permissions, save

__all__ = ["LocalFile", "local_permissions", "save", "save_blocking"]


def save_blocking(content: Iterator[bytes], target: Path) -> int:
    """Let the loop save what comes; a content of the loop's own does not pass this thread."""
    return call(save, as_async(content), target)
