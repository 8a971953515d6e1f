"""The token file is its owner's alone, appears whole, and stays."""

from __future__ import annotations

import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dsec.base.errors import InvalidRequestError
from dsec.cli.token import obtain_token


def test_a_new_token_is_readable_by_its_owner_alone(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        token = obtain_token(tmp_path / "token")
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "token").stat().st_mode) == 0o600
    assert (tmp_path / "token").read_text().strip() == token
    assert len(token) >= 32
    assert [path.name for path in tmp_path.iterdir()] == ["token"]


def test_a_token_is_kept_across_starts(tmp_path: Path) -> None:
    assert obtain_token(tmp_path / "token") == obtain_token(tmp_path / "token")


def test_tokens_differ_between_hosts(tmp_path: Path) -> None:
    assert obtain_token(tmp_path / "a") != obtain_token(tmp_path / "b")


def test_starts_side_by_side_agree_on_one_token(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        tokens = set(pool.map(lambda _: obtain_token(tmp_path / "token"), range(32)))
    assert len(tokens) == 1


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o666, 0o620])
def test_a_token_that_others_can_touch_is_refused(mode: int, tmp_path: Path) -> None:
    obtain_token(tmp_path / "token")
    (tmp_path / "token").chmod(mode)
    with pytest.raises(InvalidRequestError, match="others may read or change"):
        obtain_token(tmp_path / "token")


def test_an_empty_token_is_refused(tmp_path: Path) -> None:
    (tmp_path / "token").touch(mode=0o600)
    with pytest.raises(InvalidRequestError, match="holds no token"):
        obtain_token(tmp_path / "token")


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    obtain_token(tmp_path / "elsewhere")
    (tmp_path / "token").symlink_to("elsewhere")
    with pytest.raises(InvalidRequestError, match="symbolic links"):
        obtain_token(tmp_path / "token")
