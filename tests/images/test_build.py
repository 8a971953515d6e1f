"""Images built from Dockerfiles, through the real builder."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dsec.base.errors import (
    BuildFailedError,
    ConflictError,
    Fault,
    ImageNotFoundError,
    InvalidRequestError,
    PathNotFoundError,
)
from dsec.images.build import BuildRequest, build
from dsec.images.build_clients import BOUND_AT, host_settings
from dsec.images.build_storage import BuildStorage
from dsec.images.importers.detect import import_image
from dsec.images.importers.request import ImportRequest
from dsec.images.store import LocalImageStore
from dsec.linux import mounts
from dsec.model.image import ImageConfig, ImageInfo

pytestmark = [
    pytest.mark.root,
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("buildah") is None, reason="buildah is not installed"),
]


@pytest.fixture
def base(store: LocalImageStore, tiny_root: Path) -> ImageInfo:
    config = ImageConfig(env={"PATH": "/bin", "BASE": "1"}, workdir="/home/user", user="0")
    return import_image(store, ImportRequest(path=tiny_root, name="tiny", config=config))


def context_of(tmp_path: Path, dockerfile: str, **files: str) -> Path:
    context = tmp_path / "context"
    context.mkdir(exist_ok=True)
    (context / "Dockerfile").write_text(dockerfile)
    for name, text in files.items():
        (context / name).write_text(text)
    return context


def test_build_stores_only_what_it_adds(store: LocalImageStore, base: ImageInfo, tmp_path: Path) -> None:
    context = context_of(
        tmp_path,
        "FROM tiny\nCOPY data /app/data\nRUN cat /app/data > /made && rm /bin/ls && id > /id\n"
        "ENV FOO=bar\nWORKDIR /app\nUSER user\nRUN id > /tmp/id\n",
        data="payload",
    )
    image = build(store, BuildRequest(context=context, name="mine:v1", cache=False))
    assert image.config == ImageConfig(env={"PATH": "/bin", "BASE": "1", "FOO": "bar"}, workdir="/app", user="user")
    assert image.layers[0] == base.layers[0]
    assert len(image.layers) == 2
    _, added = store.mount(["mine:v1"]).layer_paths
    assert (added / "made").read_text() == "payload"
    assert (added / "id").read_text().startswith("uid=0(root)")
    assert (added / "tmp/id").read_text().startswith("uid=1000(user)")
    assert os.lstat(added / "bin/ls").st_rdev == 0
    assert not (added / "bin/sh").exists()


def test_a_toolkit_is_built_without_the_layers_of_its_base(
    store: LocalImageStore, base: ImageInfo, tmp_path: Path
) -> None:
    text = "FROM tiny\nRUN mkdir -p /opt/tool && touch /opt/tool/one && rm /bin/ls\nENV PATH=/opt/tool:$PATH\n"
    request = BuildRequest(context=context_of(tmp_path, text), name="tool:v1", cache=False, as_layer=True)
    image = build(store, request)
    assert len(image.layers) == 1
    stacked = store.mount(["tiny", "tool:v1"])
    assert stacked.layer_paths[0] == store.mount(["tiny"]).layer_paths[0]
    assert stacked.info.config.env["PATH"] == "/bin:/opt/tool"
    assert sorted(os.listdir(stacked.layer_paths[1] / "opt/tool")) == ["one"]
    assert os.lstat(stacked.layer_paths[1] / "bin/ls").st_rdev == 0
    nothing = BuildRequest(context=context_of(tmp_path, "FROM tiny\nENV A=1\n"), name="none", as_layer=True)
    with pytest.raises(InvalidRequestError, match="adds nothing"):
        build(store, nothing)


def test_settings_lent_to_the_build_are_not_in_the_image(
    store: LocalImageStore, base: ImageInfo, tmp_path: Path
) -> None:
    context = context_of(tmp_path, f"FROM tiny\nRUN env > /seen && ls {BOUND_AT} > /files\n")
    image = build(store, BuildRequest(context=context, name="mine", cache=False))
    added = store.mount(["mine"]).layer_paths[-1]
    seen = dict(line.partition("=")[::2] for line in (added / "seen").read_text().splitlines())
    lent = host_settings()
    assert lent.variables.items() <= seen.items()
    assert set((added / "files").read_text().split()) == set(lent.files)
    assert image.config.env == base.config.env
    assert not (added / BOUND_AT.lstrip("/")).exists()


def test_build_again_takes_every_step_from_the_cache(store: LocalImageStore, base: ImageInfo, tmp_path: Path) -> None:
    context = context_of(tmp_path, "FROM tiny\nRUN cat /proc/sys/kernel/random/uuid > /unique\nRUN touch /x\n")
    first = build(store, BuildRequest(context=context, name="one"))
    again = build(store, BuildRequest(context=context, name="two"))
    fresh = build(store, BuildRequest(context=context, name="three", cache=False))
    assert again.image_id == first.image_id != fresh.image_id


def test_image_built_here_is_a_base_of_others(store: LocalImageStore, base: ImageInfo, tmp_path: Path) -> None:
    first = build(store, BuildRequest(context=context_of(tmp_path, "FROM tiny\nRUN touch /one\n"), name="one"))
    text = "ARG B=nothing\nFROM docker.io/library/${B} AS s\nRUN touch /two\nFROM tiny\nCOPY --from=s /two /three\n"
    request = BuildRequest(context=context_of(tmp_path, text), name="two", arguments={"B": "one"}, cache=False)
    second = build(store, request)
    assert second.layers[0] == base.layers[0] == first.layers[0]
    assert (store.mount(["two"]).layer_paths[-1] / "three").exists()


def test_unknown_base_is_an_error_that_names_close_images(
    store: LocalImageStore, base: ImageInfo, tmp_path: Path
) -> None:
    with pytest.raises(ImageNotFoundError, match="tinny") as caught:
        build(store, BuildRequest(context=context_of(tmp_path, "FROM tinny\n"), name="mine"))
    assert "tiny" in caught.value.detail


def test_failing_step_is_named_with_its_last_words(store: LocalImageStore, base: ImageInfo, tmp_path: Path) -> None:
    context = context_of(tmp_path, "FROM tiny\nRUN touch /x\nRUN echo some reason >&2; exit 3\n")
    with pytest.raises(BuildFailedError) as caught:
        build(store, BuildRequest(context=context, name="mine"))
    assert caught.value.fault is Fault.CALLER
    assert "RUN echo some reason >&2; exit 3" in caught.value.brief
    assert "exit status 3" in caught.value.brief
    assert "some reason" in caught.value.detail
    assert "$ buildah" in caught.value.detail
    assert [image.name for image in store.list()] == ["tiny"]
    assert list((store.root / "staging").iterdir()) == []


@pytest.mark.parametrize(
    ("line", "said"), [("FOO bar", 'Unknown instruction: "FOO"'), ("COPY nosuch /x", "no such file")]
)
def test_a_wrong_line_of_a_dockerfile_is_named_and_its_writers_fault(
    store: LocalImageStore, base: ImageInfo, tmp_path: Path, line: str, said: str
) -> None:
    with pytest.raises(BuildFailedError) as caught:
        build(store, BuildRequest(context=context_of(tmp_path, f"FROM tiny\n{line}\n"), name="mine"))
    assert line.split()[0] in caught.value.brief
    assert said in caught.value.brief
    assert "imagebuilder" not in caught.value.brief


def test_pruning_removes_what_builds_keep_and_the_next_build_works(
    store: LocalImageStore, base: ImageInfo, tmp_path: Path
) -> None:
    context = context_of(tmp_path, "FROM tiny\nRUN touch /x\n")
    build(store, BuildRequest(context=context, name="one"))
    storage = BuildStorage(store)
    size_bytes = storage.size_bytes()
    assert size_bytes > 0
    with storage.in_use(), pytest.raises(ConflictError, match="a build runs"):
        BuildStorage(store).prune()
    assert storage.size_bytes() == size_bytes
    assert storage.prune() == size_bytes
    assert storage.size_bytes() == 0
    assert storage.prune() == 0
    assert [image.name for image in store.list()] == ["one", "tiny"]
    build(store, BuildRequest(context=context, name="two"))


def test_missing_context_and_dockerfile_are_typed_errors(store: LocalImageStore, tmp_path: Path) -> None:
    with pytest.raises(PathNotFoundError, match="context"):
        build(store, BuildRequest(context=tmp_path / "none", name="mine"))
    with pytest.raises(PathNotFoundError, match="Dockerfile"):
        build(store, BuildRequest(context=tmp_path, name="mine"))


def test_build_leaves_no_mount_outside_the_layers(store: LocalImageStore, base: ImageInfo, tmp_path: Path) -> None:
    build(store, BuildRequest(context=context_of(tmp_path, "FROM tiny\nRUN touch /x\n"), name="mine"))
    store.release()
    assert not [entry.target for entry in mounts.mounts_under(store.root)]


_BUILD = """
import sys
from pathlib import Path
from dsec.images.build import BuildRequest, build
from dsec.images.store import LocalImageStore
build(LocalImageStore(Path(sys.argv[1])), BuildRequest(context=Path(sys.argv[2]), name=sys.argv[3]))
"""


def test_two_processes_build_at_once(store: LocalImageStore, base: ImageInfo, tmp_path: Path) -> None:
    context = context_of(tmp_path, "FROM tiny\nRUN touch /x\n")
    argv = [sys.executable, "-c", _BUILD, str(store.root), str(context)]
    workers = [subprocess.Popen([*argv, name]) for name in ("one", "two")]
    assert [worker.wait(timeout=120) for worker in workers] == [0, 0]
    assert (store.mount(["one"]).layer_paths[-1] / "x").exists()
    assert (store.mount(["two"]).layer_paths[-1] / "x").exists()


def test_killed_build_leaves_nothing_that_the_next_one_does_not_clear(
    store: LocalImageStore, base: ImageInfo, tmp_path: Path
) -> None:
    context = context_of(tmp_path, "FROM tiny\nRUN echo still here; sleep 600\n")
    argv = [sys.executable, "-c", _BUILD_ALOUD, str(store.root), str(context), "killed"]
    worker = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    assert worker.stdout is not None
    while "still here" not in worker.stdout.readline():
        pass
    worker.kill()
    worker.communicate()
    _wait_until_unlocked(store.root / "build" / "active.lock")
    build(store, BuildRequest(context=context_of(tmp_path, "FROM tiny\nRUN touch /x\n"), name="next"))
    reopened = LocalImageStore(store.root)
    reopened.release()
    reopened.close()
    assert not [entry.target for entry in mounts.mounts_under(store.root)]
    assert list((store.root / "staging").iterdir()) == []
    containers = (store.root / "build/storage/overlay-containers/containers.json").read_text()
    assert containers.strip() in ("[]", "null")


_BUILD_ALOUD = """
import sys
from functools import partial
from pathlib import Path
from dsec.images.build import BuildRequest, build
from dsec.images.store import LocalImageStore
say = partial(print, flush=True)
build(LocalImageStore(Path(sys.argv[1])), BuildRequest(context=Path(sys.argv[2]), name=sys.argv[3], progress=say))
"""


def _wait_until_unlocked(path: Path) -> None:
    with path.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)


def test_odd_names_attributes_and_whiteouts_survive_a_chain_of_builds(
    store: LocalImageStore, tiny_root: Path, tmp_path: Path
) -> None:
    tree = tmp_path / "tree"
    shutil.copytree(tiny_root, tree, symlinks=True)
    (tree / "n").mkdir()
    (tree / "n" / os.fsdecode(b"raw \xff")).write_text("1")
    (tree / "n" / ("x" * 200)).write_text("2")
    os.setxattr(tree / "bin/cat", "user.note", b"\xff\x00")
    images = [import_image(store, ImportRequest(path=tree, name="step0"))]
    steps = ["ls /n > /seen", "rm -r /n /bin/ls; mkdir /n; touch /n/a", "echo /n/* /bin/l* > /seen"]
    for number, step in enumerate(steps):
        context = context_of(tmp_path, f"FROM step{number}\nRUN {step}\n")
        images.append(build(store, BuildRequest(context=context, name=f"step{number + 1}", cache=False)))
        assert images[-1].layers[:-1] == images[-2].layers
    assert b"raw \xff" in (store.mount(["step1"]).layer_paths[-1] / "seen").read_bytes()
    assert (store.mount(["step3"]).layer_paths[-1] / "seen").read_text() == "/n/a /bin/l*\n"
    assert os.getxattr(store.mount(["step3"]).layer_paths[0] / "bin/cat", "user.note") == b"\xff\x00"
