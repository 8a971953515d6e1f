"""Rules of a clean state: what a file may say, how they get into an image and stay in what is built on it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from dsec.base.errors import InvalidRequestError, PathNotFoundError
from dsec.images.fingerprint_rules import read_rules
from dsec.images.importers.oci_config import OciImageConfig, image_config, labels_of
from dsec.images.importers.request import ImportRequest
from dsec.model.image import FingerprintRules, ImageConfig, StateHooks

RULES = FingerprintRules(
    files=("/etc/shadow",),
    contents=("/etc/passwd",),
    ignored=("/tmp",),
    command=("check", "a b"),
    timeout_s=2.5,
    maximum_bytes=1024,
)


def read(path: Path, text: str) -> FingerprintRules:
    path.write_text(text)
    return read_rules(path)


def test_a_file_says_all_of_it_with_units(tmp_path: Path) -> None:
    text = """
    files = ["/etc/shadow"]   # who may log in
    contents = ["/etc/passwd"]
    ignored = ["/tmp"]
    command = ["check", "a b"]
    timeout = "2500ms"
    maximum = "1KiB"
    """
    assert read(tmp_path / "rules.toml", text) == RULES
    assert read(tmp_path / "rules.toml", "") == FingerprintRules()


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ('\nfile = ["/etc/passwd"]', r"rules.toml:2: file is not known"),
        ('contents = ["etc/passwd"]', "contents names 'etc/passwd'"),
        ('contents = ["/etc/../root"]', "contents names '/etc/../root'"),
        ('files = ["/etc/"]', "files names '/etc/'"),
        ('files = ["/a\\u0000b"]', "files names"),
        ('ignored = ["/"]', "nothing would be compared"),
        ("timeout = 10", "rules.toml:1: timeout is 10"),
        ('timeout = "2h"', "up to 600 s"),
        ('maximum = "1TiB"', "up to 16"),
        ('command = "check"', "command"),
        ('command = [""]', "no argument vector"),
        ("files = [", "not TOML"),
        (f"files = {['/x'] * 1001}", "at most 1000"),
    ],
)
def test_what_a_check_cannot_do_is_refused_where_it_stands(tmp_path: Path, text: str, complaint: str) -> None:
    with pytest.raises(InvalidRequestError, match=complaint):
        read(tmp_path / "rules.toml", text)


def test_a_file_that_is_missing_or_no_text_is_said(tmp_path: Path) -> None:
    with pytest.raises(PathNotFoundError):
        read_rules(tmp_path / "nothing")
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidRequestError, match="cannot be read"):
        read_rules(tmp_path / "bytes")


def test_labels_carry_everything_there_and_back() -> None:
    config = ImageConfig(hooks=StateHooks(export_state=("save",), timeout_s=3.0), fingerprint=RULES)
    document = {"rootfs": {"diff_ids": []}, "config": {"Labels": labels_of(config)}}
    again = image_config(msgspec.json.decode(msgspec.json.encode(document), type=OciImageConfig))
    assert (again.hooks, again.fingerprint) == (config.hooks, config.fingerprint)
    assert labels_of(ImageConfig()) == {}


def test_a_label_is_held_to_the_same_as_a_file() -> None:
    document = {"rootfs": {"diff_ids": []}, "config": {"Labels": {"dev.dsec.fingerprint": '{"files": ["x"]}'}}}
    with pytest.raises(InvalidRequestError, match=r"label dev\.dsec\.fingerprint: files names 'x'"):
        image_config(msgspec.convert(document, OciImageConfig))


def test_rules_that_are_given_stand_above_those_that_the_source_brings() -> None:
    brought = ImageConfig(user="7", fingerprint=FingerprintRules(files=("/other",)))
    request = ImportRequest(path=Path("x"), name="x", fingerprint=RULES)
    assert request.settings(brought) == ImageConfig(user="7", fingerprint=RULES)
    assert request.settings() == ImageConfig(fingerprint=RULES)
    assert ImportRequest(path=Path("x"), name="x").settings(brought) == brought
