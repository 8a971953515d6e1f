"""What programs that make images can do to the host."""

from __future__ import annotations

from pathlib import Path

import pytest

from dsec.base.errors import ExternalCommandError, HostDiskFullError
from dsec.images.command import run
from dsec.images.durable import full_disk_reported
from dsec.linux.mounts import mounts_under

pytestmark = pytest.mark.root


def test_a_full_disk_is_told_however_much_the_program_says_afterwards() -> None:
    script = "echo dpkg: No space left on device; seq 1000; exit 7"
    with pytest.raises(HostDiskFullError, match="storing") as caught, full_disk_reported("storing"):
        run(["sh", "-c", script], package="dash")
    assert "dpkg: No space" in caught.value.detail
    with pytest.raises(ExternalCommandError), full_disk_reported("storing"):
        run(["sh", "-c", "seq 1000; exit 7"], package="dash")


def test_what_a_program_mounts_is_seen_by_nobody_else_and_gone_with_it(tmp_path: Path) -> None:
    seen: list[str] = []
    script = f"mount -t tmpfs none {tmp_path} && touch {tmp_path}/inside && ls {tmp_path}"

    def look(line: str) -> None:
        seen.append(line)
        assert not list(mounts_under(tmp_path))
        assert not list(tmp_path.iterdir())

    run(["sh", "-c", script], package="dash", progress=look, own_mounts=True)
    assert seen == ["inside"]
    assert not list(mounts_under(tmp_path))
