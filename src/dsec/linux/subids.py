"""Subordinate ids: the ranges of host ids that an ordinary user may map into a user namespace.

``/etc/subuid`` and ``/etc/subgid`` give them (subuid(5)); the set-user-id programs ``newuidmap`` and ``newgidmap``
write the maps, since the kernel lets an ordinary user map one id only.
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
from pathlib import Path

from dsec.base.errors import CapabilityMissingError

NEEDED = 65_536
"""Ids beside the user's own: those of users 1 to 65,535 of images, and one that no sandbox has (`OUTSIDE_ID`)."""
OUTSIDE_ID = 65_536
"""An id of the namespace that no sandbox maps, so that nothing in a sandbox may signal a process that has it."""

_KINDS = (("newuidmap", Path("/etc/subuid")), ("newgidmap", Path("/etc/subgid")))


def subordinate_range(path: Path, user: str, uid: int) -> tuple[int, int] | None:
    """Return first id and length of a user's largest range; None without one."""
    try:
        lines = path.read_text(encoding="utf8").splitlines()
    except OSError:
        return None
    fields = (line.split(":") for line in lines)
    ranges = [
        (int(entry[1]), int(entry[2]))
        for entry in fields
        if len(entry) == 3 and entry[0] in (user, str(uid)) and entry[1].isdigit() and entry[2].isdigit()
    ]
    return max(ranges, key=lambda entry: entry[1], default=None)


def write_maps(pid: int) -> None:
    """Map ids in the new user namespace of the process `pid`: 0 to this user, 1 to 65,536 to subordinate ids.

    Raises:
        CapabilityMissingError: the programs or the ranges are missing, or too small.
    """
    uid = os.getuid()
    user = pwd.getpwuid(uid).pw_name
    for (program, path), own in zip(_KINDS, (uid, os.getgid()), strict=True):
        found = subordinate_range(path, user, uid)
        if found is None or found[1] < NEEDED:
            raise CapabilityMissingError(
                f"{user} has no {NEEDED:,} subordinate ids in {path}",
                detail="the files of an image belong to many users, and each needs an id of this host",
                resolution=f"as root: usermod --add-subuids 100000-165535 --add-subgids 100000-165535 {user}",
            )
        _run(program, [str(pid), "0", str(own), "1", "1", str(found[0]), str(NEEDED)])


def _run(program: str, arguments: list[str]) -> None:
    path = shutil.which(program)
    if path is None:
        raise CapabilityMissingError(f"{program} is not installed", resolution="apt-get install uidmap")
    done = subprocess.run([path, *arguments], capture_output=True, text=True, errors="replace", check=False)
    if done.returncode != 0:
        raise CapabilityMissingError(
            f"{program} refused to map subordinate ids",
            detail=done.stderr.strip(),
            resolution="see newuidmap(1): the program must be set-user-id root, and the range yours",
        )
