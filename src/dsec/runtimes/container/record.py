"""What a node that adopts an instance has to know of it."""

from __future__ import annotations

import msgspec


class InstanceRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Written before the instance is launched.

    Attributes:
        runtime: name of the OCI runtime that launched it.
        first_host_id: first of its host ids.
        open_files: RLIMIT_NOFILE of its commands.
    """

    runtime: str
    first_host_id: int
    open_files: int | None
