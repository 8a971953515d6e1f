"""What a node that adopts an instance has to know of it."""

from __future__ import annotations

import json
import os
from pathlib import Path

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


def forget_groups(state: Path) -> None:
    """Empty the list of control groups in a state file of runc, so that it moves no command out of its own group.

    Without the list, `exec` leaves a process in the group that it inherits from `exec` itself (runc 1.1,
    libcontainer/process_linux.go), which is the command's own, where it can be killed with everything it starts.
    """
    try:
        content = json.loads(state.read_bytes())
    except FileNotFoundError:
        return  # A runtime that keeps its state in another form.
    content["cgroup_paths"] = {}
    new = state.with_suffix(".new")
    new.write_text(json.dumps(content), encoding="utf8")
    os.replace(new, state)
