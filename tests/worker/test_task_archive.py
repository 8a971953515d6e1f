"""Folders as archives and digests; images of Dockerfiles."""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from dsec.base.errors import CallerError, CapabilityMissingError, ExternalCommandError, TaskFormatError
from dsec.model.image import ImageConfig, ImageInfo
from dsec.worker.layout import task_folder_name
from dsec.worker.tasks.archive import content_digest, pack_folder
from dsec.worker.tasks.harbor import parse_task
from dsec.worker.tasks.images import TaskImages, image_tag
from dsec.worker.tasks.task import Task


def _members(data: bytes) -> dict[str, tarfile.TarInfo]:
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        return {member.name: member for member in archive}


def test_an_archive_is_roots_and_scripts_run(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir(mode=0o700)
    (tmp_path / "sub" / "run.sh").write_text("x")
    (tmp_path / "data").write_bytes(b"\0" * 2000)
    (tmp_path / "data").chmod(0o600)
    members = _members(pack_folder(tmp_path, prefix="tests", directories=("logs",)))
    assert {name: oct(member.mode) for name, member in members.items()} == {
        "logs": "0o755",
        "tests": "0o755",
        "tests/data": "0o644",
        "tests/sub": "0o755",
        "tests/sub/run.sh": "0o755",
    }
    assert {(member.uid, member.gid, member.uname) for member in members.values()} == {(0, 0, "")}


def test_content_that_ends_in_zeros_is_kept(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(b"\0" * 5000)
    data = pack_folder(tmp_path)
    assert _members(data)["data"].size == 5000
    assert len(data) == 512 + 5120 + 1024


def test_a_fifo_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(TaskFormatError, match="pipe"):
        pack_folder(tmp_path)


def test_the_digest_follows_names_content_and_the_executable_bit(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("1")
    digests = {content_digest(tmp_path)}
    (tmp_path / "a").write_text("2")
    digests.add(content_digest(tmp_path))
    (tmp_path / "a").chmod(0o755)
    digests.add(content_digest(tmp_path))
    (tmp_path / "a").rename(tmp_path / "b")
    digests.add(content_digest(tmp_path))
    (tmp_path / "c").symlink_to("b")
    digests.add(content_digest(tmp_path))
    assert len(digests) == 5
    os.utime(tmp_path / "b", (1, 1))
    assert content_digest(tmp_path) in digests


@pytest.mark.parametrize("name", ["a", "a/b", "..", ".", "", "ü", "x" * 500, "<b>", "a%2Fb", "\ufffd"])
def test_names_of_folders_are_safe(name: str) -> None:
    folder = task_folder_name(name)
    assert "/" not in folder
    assert not folder.startswith(".")
    assert len(folder) <= 255


def test_names_of_folders_differ() -> None:
    names = ["a/b", "a%2Fb", ".a", "%2Ea", "x" * 400, "x" * 401]
    assert len({task_folder_name(name) for name in names}) == len(names)


class Listing:
    """Lists images."""

    def __init__(self, *names: str) -> None:
        self.names = list(names)
        self.asked = 0

    async def images(self) -> Sequence[ImageInfo]:
        self.asked += 1
        config = ImageConfig(workdir="/app")
        return [ImageInfo(name=name, image_id="sha256:0", layers=(), config=config) for name in self.names]


class Builder:
    """Counts builds, and fails on demand."""

    def __init__(self, error: Exception | None = None) -> None:
        self.tags: list[str] = []
        self._error = error

    async def build(self, context_dir: Path, tag: str) -> str:
        assert (context_dir / "Dockerfile").exists()
        self.tags.append(tag)
        await anyio.lowlevel.checkpoint()
        if self._error:
            raise self._error
        return tag


@pytest.fixture
def task(make_task: Callable[..., Path]) -> Task:
    return parse_task(make_task("My Task", toml="", files={"environment/Dockerfile": "FROM python\n"}))


@pytest.mark.anyio
async def test_a_dockerfile_is_built_once_for_all_attempts(task: Task) -> None:
    builder = Builder()
    images = TaskImages(Listing(), builder)
    async with anyio.create_task_group() as group:
        for _ in range(5):
            group.start_soon(images.image_of, task)
    assert builder.tags == [image_tag(task)]
    assert image_tag(task).startswith("task-my-task:")


@pytest.mark.anyio
async def test_an_image_that_is_there_is_not_built_again_until_its_files_change(task: Task) -> None:
    before = image_tag(task)
    builder = Builder()
    assert await TaskImages(Listing(before), builder).image_of(task) == before
    assert builder.tags == []
    (task.folder / "environment" / "Dockerfile").write_text("FROM python\nRUN true\n")
    assert image_tag(task) != before


@pytest.mark.anyio
async def test_a_build_that_failed_is_not_tried_again(task: Task) -> None:
    builder = Builder(ExternalCommandError("RUN false failed", detail="the last words"))
    images = TaskImages(Listing(), builder)
    for _ in range(2):
        with pytest.raises(CallerError, match="RUN false failed") as caught:
            await images.image_of(task)
        assert not caught.value.retryable
    assert len(builder.tags) == 1


@pytest.mark.anyio
async def test_a_dockerfile_without_a_builder_is_an_error(task: Task) -> None:
    with pytest.raises(CapabilityMissingError, match="Dockerfile"):
        await TaskImages(Listing(), None).image_of(task)


@pytest.mark.anyio
async def test_settings_of_an_image_that_was_just_built_are_known(task: Task) -> None:
    listing = Listing()

    class Builds(Builder):
        async def build(self, context_dir: Path, tag: str) -> str:
            listing.names.append(tag)
            return await super().build(context_dir, tag)

    images = TaskImages(listing, Builds())
    assert (await images.config_of(await images.image_of(task))).workdir == "/app"


@pytest.mark.anyio
async def test_an_image_that_is_not_listed_is_asked_for_once() -> None:
    listing = Listing()
    images = TaskImages(listing, None)
    for _ in range(3):
        assert (await images.config_of("python")).workdir == "/"
    assert listing.asked == 1
