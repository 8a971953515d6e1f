"""A node of an ordinary user, seen from root: its user, its state directory, and a small image in its store."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from dsec.testing.guest_image import make_root
from dsec.testing.ordinary_user import OrdinaryUser, reason_to_skip, throwaway_user


@pytest.fixture(scope="session")
def user() -> Iterator[OrdinaryUser]:
    if reason := reason_to_skip():
        pytest.skip(reason)
    try:
        manager = throwaway_user()
        user = manager.__enter__()
    except RuntimeError as error:
        pytest.skip(str(error))
    try:
        yield user
    finally:
        manager.__exit__(None, None, None)


@pytest.fixture(scope="session")
def image_tar(user: OrdinaryUser, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root file system with files of several owners, as an archive that the user may read."""
    root = make_root(tmp_path_factory.mktemp("image") / "root", python=True)
    path = user.home / "image.tar"
    with tarfile.open(path, "w") as tar:
        tar.add(root, ".")
    return path


@pytest.fixture(scope="session")
def state_dir(user: OrdinaryUser, image_tar: Path) -> Path:
    """A state directory with the images ``base`` and, for an ordinary user inside, ``bench``."""
    path = user.home / "state"
    settings = {"base": (), "bench": ("--user", "user", "--workdir", "/home/user")}
    for name, options in settings.items():
        done = user.run(user.dsec(path, "image", "import", str(image_tar), "--name", name, *options))
        assert done.returncode == 0, done.stderr
        assert "owners left out" not in done.stderr
    return path
