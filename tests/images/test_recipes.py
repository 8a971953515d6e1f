"""The default image, really built from Debian packages."""

from __future__ import annotations

import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dsec.base.errors import ImageNotFoundError
from dsec.images.build import BuildRequest, build
from dsec.images.recipes import ensure
from dsec.images.staging import remove_tree
from dsec.images.store import LocalImageStore

_ENSURE = """
import sys
from pathlib import Path
from dsec.images.recipes import ensure
from dsec.images.store import LocalImageStore
print(ensure(LocalImageStore(Path(sys.argv[1])), "python", progress=print).image_id)
"""


def test_name_without_recipe_is_an_error_with_close_matches(store: LocalImageStore) -> None:
    with pytest.raises(ImageNotFoundError) as caught:
        ensure(store, "pyton")
    assert "python" in caught.value.detail


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LocalImageStore, list[list[str]]]]:
    """A store whose default image three processes have asked for at once, and what they said."""
    root = tmp_path_factory.mktemp("python") / "images"
    store = LocalImageStore(root)
    argv = [sys.executable, "-c", _ENSURE, str(root)]
    workers = [subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    said = [worker.communicate()[0].splitlines() for worker in workers]
    yield store, said
    store.close()
    remove_tree(root)


@pytest.mark.root
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(shutil.which("mmdebstrap") is None, reason="mmdebstrap is not installed")
class TestPython:
    def test_many_who_ask_at_once_get_one_build(self, built: tuple[LocalImageStore, list[list[str]]]) -> None:
        store, said = built
        assert {lines[-1] for lines in said} == {store.get("python").image_id}
        assert sum(any("building the image" in line for line in lines) for lines in said) == 1

    def test_it_has_what_tasks_need(self, built: tuple[LocalImageStore, list[list[str]]], tmp_path: Path) -> None:
        root = self._root(built, tmp_path)
        for program in ("python3", "python", "pip", "git", "bash", "ps", "less", "curl"):
            assert any((root / where / program).exists() for where in ("usr/bin", "bin")), program
        assert self._run(root, "python -c 'import pytest, venv'").returncode == 0
        assert b"uid=1000(user)" in self._run(root, "id user").stdout

    def test_it_is_clean_of_lists_and_caches(
        self, built: tuple[LocalImageStore, list[list[str]]], tmp_path: Path
    ) -> None:
        root = self._root(built, tmp_path)
        assert not list((root / "var/cache/apt").glob("*.bin"))
        assert not [path for path in (root / "var/lib/apt/lists").glob("*") if path.is_file() and path.name != "lock"]
        assert (root / "etc/machine-id").read_text() == ""
        assert not [path for path in (root / "dev").iterdir() if stat.S_ISCHR(path.lstat().st_mode)]
        assert (root / "etc/resolv.conf").read_text() == ""

    def test_packages_install_in_builds_upon_it(
        self, built: tuple[LocalImageStore, list[list[str]]], tmp_path: Path
    ) -> None:
        store, _ = built
        (tmp_path / "Dockerfile").write_text(
            "FROM python\nRUN pip install --no-cache-dir six\n"
            "RUN apt-get update && apt-get install -y tree && rm -rf /var/lib/apt/lists/*\nUSER user\n"
        )
        image = build(store, BuildRequest(context=tmp_path, name="with-packages", cache=False))
        assert image.layers[0] == store.get("python").layers[0]
        added = store.mount(["with-packages"]).layer_paths[-1]
        assert list(added.glob("usr/local/lib/python3*/dist-packages/six.py"))
        assert (added / "usr/bin/tree").exists()
        assert image.layers[1].size_bytes < 20_000_000

    def _root(self, built: tuple[LocalImageStore, list[list[str]]], tmp_path: Path) -> Path:
        (root,) = built[0].mount(["python"]).layer_paths
        return root

    def _run(self, root: Path, script: str) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(["chroot", root, "/bin/sh", "-c", script], capture_output=True, check=False)
