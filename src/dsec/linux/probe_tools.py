"""Probes of programs and of files that Debian packages bring."""

from __future__ import annotations

import json
import os
import pwd
import re
import shutil
import subprocess
from pathlib import Path

from dsec.linux.probe import Finding, found, missing

_PATHS = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/local/sbin", "/usr/sbin", "/sbin"])
_TIMEOUT_S = 5.0
_VERSION = re.compile(r"[0-9]+(?:\.[0-9]+)+[^\s,;]*|release-[0-9]+\S*")

SECCOMP_PROFILE = Path("/usr/share/containers/seccomp.json")
"""The maintained default profile of the containers project."""


def find(program: str) -> str | None:
    """Return the path of a program; system directories are searched for ordinary users too."""
    return shutil.which(program, path=_PATHS)


def tool(program: str, *version_argv: str) -> Finding:
    """Is a program there, does it start, and which version is it?"""
    path = find(program)
    if path is None:
        return missing("not found")
    argv = [path, *(version_argv or ("--version",))]
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return missing(f"{path} does not run: {error}")
    if done.returncode < 0 or done.returncode in (126, 127):
        return missing(f"{path} does not run: status {done.returncode}")
    version = _VERSION.search((done.stdout + done.stderr).decode(errors="replace"))
    return found(f"{version.group() if version else 'unknown version'}, {path}")


def oci_runtimes(names: tuple[str, ...]) -> Finding:
    """Is any of these OCI runtimes there?"""
    findings = {name: tool(name) for name in names}
    there = [f"{name} {finding.seen.split(',')[0]}" for name, finding in findings.items() if finding.present]
    return found("; ".join(there)) if there else missing(f"none of {', '.join(names)}")


def catatonit() -> Finding:
    """Is the init there, and static (it must run in images that have no C library)?"""
    finding = tool("catatonit", "-V")
    path = find("catatonit")
    if finding.present and path and not _is_static(Path(path)):
        return missing(f"{path} is linked dynamically")
    return finding


def _is_static(path: Path) -> bool:
    """Tell whether an ELF file names no interpreter (PT_INTERP, type 3; elf(5))."""
    head = path.read_bytes()[:4096]
    if head[:5] != b"\x7fELF\x02":
        return False
    start, size, count = (
        int.from_bytes(head[at : at + length], "little") for at, length in ((32, 8), (54, 2), (56, 2))
    )
    kinds = (head[start + size * index : start + size * index + 4] for index in range(count))
    return b"\x03\0\0\0" not in kinds


def seccomp_profile() -> Finding:
    """Is the default profile there, and is it one?"""
    try:
        rules = json.loads(SECCOMP_PROFILE.read_bytes())["syscalls"]
    except OSError as error:
        return missing(f"{SECCOMP_PROFILE}: {error.strerror}")
    except (ValueError, KeyError, TypeError):
        return missing(f"{SECCOMP_PROFILE} is not a seccomp profile")
    return found(f"{SECCOMP_PROFILE}, {len(rules)} rules")


def subordinate_ids() -> Finding:
    """May this user map a range of 65,536 ids (newuidmap and an entry in /etc/subuid and /etc/subgid)?"""
    if os.geteuid() == 0:
        return found("root maps what it likes")
    lacking = [name for name in ("newuidmap", "newgidmap") if find(name) is None]
    if lacking:
        return missing(f"{' and '.join(lacking)} not found")
    user = pwd.getpwuid(os.geteuid()).pw_name
    short = [path for path in ("/etc/subuid", "/etc/subgid") if _largest_range(path, user) < 65_536]
    if short:
        remedy = f"usermod --add-subuids 100000-165535 --add-subgids 100000-165535 {user}"
        return missing(f"{user} has no 65,536 ids in {' and '.join(short)}", remedy)
    return found(f"{user} has ranges in /etc/subuid and /etc/subgid")


def _largest_range(path: str, user: str) -> int:
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:
        return 0
    fields = (line.split(":") for line in lines)
    return max(
        (int(entry[2]) for entry in fields if len(entry) == 3 and entry[0] in (user, str(os.geteuid()))), default=0
    )
