"""Loop devices, on real ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from dsec.linux import loop

pytestmark = pytest.mark.root


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(bytes(1 << 20))
    return path


def test_a_file_that_is_attached_for_writing_keeps_its_one_device(file: Path) -> None:
    assert loop.find(file) is None
    with loop.attached(file) as device, loop.attached(file) as again:
        assert loop.find(file) == device == again


def test_who_looks_for_a_writable_device_opens_none_that_only_reads(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    read = loop.backing_file

    def noted(device: str) -> tuple[int, int] | None:
        opened.append(device)
        return read(device)

    monkeypatch.setattr(loop, "backing_file", noted)
    with loop.attached_read_only(file) as reading, loop.attached(file) as writing:
        assert loop.find(file) == writing != reading
    assert reading not in opened
