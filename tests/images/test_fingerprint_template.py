"""A template says what is in the image, and is itself a file of rules."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dsec.images.fingerprint_rules import read_rules
from dsec.images.fingerprint_template import fingerprint_template
from dsec.images.merged import merged_tree
from dsec.model.image import FingerprintRules, ImageConfig, ImageInfo


def fill(top: Path, *names: str) -> Path:
    for name in names:
        path = top / name
        if name.endswith("/"):
            path.mkdir(parents=True)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(name)
    return top


def template(tmp_path: Path, *layers: Path) -> tuple[str, FingerprintRules]:
    info = ImageInfo(name="mine", image_id="x", layers=(), config=ImageConfig(workdir="/work"))
    text = fingerprint_template(info, layers)
    (tmp_path / "rules.toml").write_text(text)
    return text, read_rules(tmp_path / "rules.toml")


def test_important_files_are_declared_and_volatile_ones_ignored(tmp_path: Path) -> None:
    layer = fill(
        tmp_path / "layer",
        *("etc/passwd", "etc/shadow", "tmp/", "work/", "var/log/x", "home/user/.bashrc", "root/.cache/x", "bin/su"),
        *("lib/site-packages/a.pth", "lib/__pycache__/x.pyc", "srv/open/deep/.cache/"),
    )
    (layer / "tmp").chmod(0o1777)
    (layer / "srv/open").chmod(0o777)
    (layer / "bin/su").chmod(0o4755)
    text, rules = template(tmp_path, layer)
    assert rules.contents == ("/etc/passwd",)
    assert rules.files == (
        "/bin/su",
        "/etc/ld.so.preload",
        "/etc/shadow",
        "/home/user/.bashrc",
        "/lib/site-packages/a.pth",
    )
    assert rules.ignored == ("/home/user", "/root", "/srv/open", "/tmp", "/var/log", "/work")
    assert rules.command == ()
    assert "must stay so" in text


def test_an_empty_image_has_a_template_too(tmp_path: Path) -> None:
    assert template(tmp_path, fill(tmp_path / "layer", "x/"))[1] == FingerprintRules(files=("/etc/ld.so.preload",))


def test_names_that_an_image_chooses_stay_within_their_line(tmp_path: Path) -> None:
    layer = fill(tmp_path / "layer", 'a"\n[x]\\/')
    os.mkdir(os.fsencode(layer) + b"/b\xff")
    for name in os.listdir(os.fsencode(layer)):
        os.chmod(os.fsencode(layer) + b"/" + name, 0o777)
    assert template(tmp_path, layer)[1].ignored == ('/a"\n[x]\\', "/b�")


@pytest.mark.root
def test_layers_hide_and_merge_as_overlayfs_does(tmp_path: Path) -> None:
    low = fill(tmp_path / "low", "a/1", "a/2", "b/1", "c/1", "d", "e/1")
    middle = fill(tmp_path / "middle", "a/3", "b/2", "d/1")
    high = fill(tmp_path / "high", "e", "f/1")
    os.mknod(middle / "a/1", 0o020000, os.makedev(0, 0))
    os.setxattr(middle / "b", "trusted.overlay.opaque", b"y")
    os.mknod(middle / "c", 0o020000, os.makedev(0, 0))
    found = sorted(entry.path for entry in merged_tree((low, middle, high), limit=100))
    assert found == ["/a", "/a/2", "/a/3", "/b", "/b/2", "/d", "/d/1", "/e", "/f", "/f/1"]
