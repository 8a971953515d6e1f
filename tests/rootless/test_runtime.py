"""The runtime of an ordinary user conforms, with and without a control group of the user's own."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dsec.linux.cgroups import CgroupMounts
from dsec.testing.ordinary_user import OrdinaryUser

pytestmark = [pytest.mark.root, pytest.mark.slow]


@contextmanager
def delegated(user: OrdinaryUser) -> Iterator[Path]:
    """Make a control group and give it to the user as cgroup-v2.rst says; whatever is in it is gone afterwards."""
    found = CgroupMounts.find()
    if found is None:
        pytest.skip("this host has no cgroup2 tree")
    group = found.unified / f"dsec-delegated-{os.getpid()}"
    group.mkdir()
    try:
        for path in (group, *(group / f"cgroup.{name}" for name in ("procs", "threads", "subtree_control"))):
            os.chown(path, user.uid, user.gid)
        yield group
    finally:
        (group / "cgroup.kill").write_text("1")
        for directory, _, _ in os.walk(group, topdown=False):
            Path(directory).rmdir()


def conform(user: OrdinaryUser, state_dir: Path, *, group: Path | None) -> None:
    """Run the suite in the user's namespace, and fail with what it said."""
    (layer,) = (state_dir / "images/layers").iterdir()
    variables = {"DSEC_TEST_IMAGE": str(layer / "tree")}
    if group is not None:
        leaf = group / "suite"
        leaf.mkdir()
        os.chown(leaf / "cgroup.procs", user.uid, user.gid)
        variables["DSEC_TEST_GROUP"] = f"/{group.name}"
        group = leaf
    tests = Path(__file__).with_name("conformance.py")
    config = tests.parents[2] / "pyproject.toml"
    pytest_line = user.command("-m", "pytest", "-c", str(config), "-x", "--noconftest", "--rootdir", "/", str(tests))
    enter = user.command("-m", "dsec.testing.ordinary_user", str(state_dir))
    done = user.run([*enter, *pytest_line], group=group, **variables)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]


def test_runtime_conforms_without_control_groups(user: OrdinaryUser, state_dir: Path) -> None:
    conform(user, state_dir, group=None)


def test_runtime_conforms_with_a_delegated_control_group(user: OrdinaryUser, state_dir: Path) -> None:
    with delegated(user) as group:
        conform(user, state_dir, group=group)
