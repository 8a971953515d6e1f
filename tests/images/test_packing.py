"""A pack undoes what a session did at scrubbed paths, and never changes what the image has there."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dsec.base.errors import AlreadyExistsError, InvalidRequestError, LimitExceededError
from dsec.images import packing
from dsec.images.below import Below
from dsec.images.importers.detect import import_image
from dsec.images.importers.request import ImportRequest
from dsec.images.listing import walk
from dsec.images.oci_export import export_image
from dsec.images.packing import MAXIMUM_NAMED, PackOrder
from dsec.images.scrub import Scrub
from dsec.images.staging import remove_tree
from dsec.images.store import LocalImageStore
from dsec.model.image import ImageConfig, LayerFormat
from dsec.model.state import PackReport, ScrubRules
from dsec.testing.image_suite import make_tree

OPAQUE = "user.overlay.opaque" if os.geteuid() else "trusted.overlay.opaque"
CONFIG = ImageConfig(workdir="/srv")
needs_devices = pytest.mark.skipif(os.geteuid() != 0, reason="only root makes whiteouts outside of a user namespace")


class Session:
    """An image with one layer, and the upper directory of a session on it."""

    def __init__(self, top: Path) -> None:
        self.store = LocalImageStore(top / "images", layer_format=LayerFormat.DIRECTORY)
        self.image = top / "image"
        self.image.mkdir()
        self.upper = top / "upper"
        self.upper.mkdir()

    def whiteout(self, path: str) -> None:
        target = self.upper / path
        target.parent.mkdir(parents=True, exist_ok=True)
        os.mknod(target, stat.S_IFCHR, 0)

    def opaque(self, path: str) -> Path:
        target = self.upper / path
        target.mkdir(parents=True, exist_ok=True)
        os.setxattr(target, OPAQUE, b"y")
        return target

    def pack(
        self,
        rules: ScrubRules = ScrubRules(),
        *,
        name: str = "packed",
        dry_run: bool = False,
        check: Callable[[], None] = lambda: None,
    ) -> PackReport:
        base = self.store.add_layer(self.image)
        self.store.add_image("base", [base], CONFIG, source="test")
        order = PackOrder(
            name=name,
            upper=self.upper,
            base=(base,),
            layer_paths=self.store.mount_layers([base]),
            config=CONFIG,
            scrub=Scrub(rules),
            source="test",
            dry_run=dry_run,
            check=check,
        )
        return self.store.pack(order)

    def tree(self) -> dict[str, str]:
        """What the packed layer holds: kinds by path; ``o`` marks what is opaque, ``w`` whiteouts."""
        path = self.store.mount(["packed"]).layer_paths[-1]
        fd = os.open(path, os.O_RDONLY)
        try:
            return {os.fsdecode(node.path): self._kind(path / os.fsdecode(node.path)) for node in walk(fd) if node.path}
        finally:
            os.close(fd)

    @staticmethod
    def _kind(path: Path) -> str:
        status = path.lstat()
        if stat.S_ISCHR(status.st_mode):
            return "w"
        if stat.S_ISDIR(status.st_mode):
            return "o" if OPAQUE in os.listxattr(path) else "d"
        return "l" if stat.S_ISLNK(status.st_mode) else "f"


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    session = Session(tmp_path)
    yield session
    session.store.close()
    remove_tree(session.store.root)  # What is mounted below it first.


def test_a_pack_is_an_image_of_the_layers_below_and_what_the_session_wrote(session: Session) -> None:
    make_tree(session.image, etc__os="base")
    make_tree(session.upper, srv__app="new", root__secret="x")
    report = session.pack(ScrubRules(remove=("/root/secret",)))
    image = session.store.get("packed")
    assert [layer.digest for layer in image.layers] == [session.store.get("base").layers[0].digest, report.layer]
    assert (image.config, report.name) == (CONFIG, "packed")
    assert session.tree() == {"srv": "d", "srv/app": "f", "root": "d"}
    assert (report.files, report.content_bytes) == (3, 3)
    assert (report.removed, report.removed_files, report.removed_bytes) == (("/root/secret: /root/secret",), 1, 1)


def test_a_directory_that_goes_as_a_whole_is_named_once(session: Session) -> None:
    make_tree(session.upper, srv__a="a")
    make_tree(session.upper / "srv" / "__pycache__", **{f"{number}.pyc": "x" for number in range(5)})
    report = session.pack()
    assert (report.removed, report.removed_files) == (("/srv/__pycache__: compiler caches",), 6)
    assert "srv/__pycache__" not in session.tree()


def test_a_directory_that_a_scrub_leaves_empty_stays(session: Session) -> None:
    make_tree(session.upper, tmp__x="x")
    session.pack()
    assert session.tree() == {"tmp": "d"}


def test_what_is_kept_keeps_the_directories_that_lead_to_it(session: Session) -> None:
    make_tree(session.upper, root__cache__pip__a="a", root__cache__pip__model__w="w")
    report = session.pack(ScrubRules(remove=("cache/",), keep=("model/",)))
    assert session.tree() == {
        "root": "d",
        "root/cache": "d",
        "root/cache/pip": "d",
        "root/cache/pip/model": "d",
        "root/cache/pip/model/w": "f",
    }
    assert report.removed == ("/root/cache/pip/a: cache/",)


@needs_devices
def test_a_whiteout_stays_in_a_scrubbed_directory_so_that_nothing_comes_back(session: Session) -> None:
    make_tree(session.image, root__cache__old="image")
    make_tree(session.upper, root__cache__new="session")
    session.whiteout("root/cache/old")
    session.pack(ScrubRules(remove=("/root/cache/",)))
    assert session.tree() == {"root": "d", "root/cache": "d", "root/cache/old": "w"}


def test_an_opaque_directory_stays_so_that_nothing_comes_back(session: Session) -> None:
    make_tree(session.image, root__cache__old="image")
    (session.opaque("root/cache") / "new").write_text("session")
    session.pack(ScrubRules(remove=("/root/cache/",)))
    assert session.tree() == {"root": "d", "root/cache": "o"}


def test_a_file_of_the_image_is_seen_again_when_the_sessions_is_scrubbed(session: Session) -> None:
    make_tree(session.image, **{"root__.bash_history": "image"})
    make_tree(session.upper, **{"root__.bash_history": "session"})
    session.pack()
    assert session.tree() == {"root": "d"}


@needs_devices
def test_a_scrubbed_file_that_stands_where_the_image_has_a_directory_becomes_a_whiteout(session: Session) -> None:
    make_tree(session.image, root__cache__old="image")
    make_tree(session.upper, root__cache="session")
    report = session.pack(ScrubRules(remove=("/root/cache",)))
    assert session.tree() == {"root": "d", "root/cache": "w"}
    assert report.removed == ("/root/cache: /root/cache",)


def test_below_an_opaque_directory_the_image_has_nothing_to_hide(session: Session) -> None:
    make_tree(session.image, root__cache__old="image")
    (session.opaque("root") / "cache").write_text("session")
    session.pack(ScrubRules(remove=("/root/cache",)))
    assert session.tree() == {"root": "o"}


@pytest.mark.parametrize("scrubbed", ["a", "b", "c"])
def test_names_of_one_file_that_stay_share_it_whichever_was_scrubbed(session: Session, scrubbed: str) -> None:
    make_tree(session.upper, a="content")
    for name in "bc":
        os.link(session.upper / "a", session.upper / name)
    report = session.pack(ScrubRules(remove=(f"/{scrubbed}",)))
    path = session.store.mount(["packed"]).layer_paths[-1]
    kept = [path / name for name in "abc" if name != scrubbed]
    assert [each.read_text() for each in kept] == ["content"] * 2
    assert kept[0].stat().st_ino == kept[1].stat().st_ino
    assert (report.content_bytes, report.removed_bytes) == (7, 0)


def test_a_file_whose_names_all_go_is_counted_once(session: Session) -> None:
    make_tree(session.upper, a="content")
    os.link(session.upper / "a", session.upper / "b")
    report = session.pack(ScrubRules(remove=("/a", "/b")))
    assert (report.removed_files, report.removed_bytes) == (2, 7)


def test_links_are_copied_and_never_followed(session: Session, tmp_path: Path) -> None:
    make_tree(tmp_path / "host", secret="host")
    (session.upper / "tmp").symlink_to(tmp_path / "host")
    (session.upper / "out").symlink_to(tmp_path / "host" / "secret")
    report = session.pack()
    assert session.tree() == {"tmp": "l", "out": "l"}
    assert report.content_bytes == 0


def test_marks_of_one_mount_go_and_attributes_of_the_guest_stay(session: Session) -> None:
    make_tree(session.upper, a="a")
    for name in ("user.overlay.origin", "user.overlay.impure", "user.mine"):
        os.setxattr(session.upper / "a", name, b"y")
    session.pack()
    path = session.store.mount(["packed"]).layer_paths[-1]
    assert os.listxattr(path / "a") == ["user.mine"]


def test_hostile_names_are_shown_harmless_and_at_most_a_thousand(session: Session) -> None:
    (session.upper / "tmp").mkdir()
    for number in range(MAXIMUM_NAMED + 10):
        (session.upper / "tmp" / f"\x1b[2J{number:04}").write_bytes(b"")
    os.mkdir(os.fsencode(session.upper) + b"/tmp/\xff")
    report = session.pack()
    assert len(report.removed) == MAXIMUM_NAMED
    assert report.removed_files == MAXIMUM_NAMED + 11
    assert all(line.isprintable() and line.startswith("/tmp/\\x1b[2J") for line in report.removed)


def test_a_dry_run_says_the_same_and_makes_nothing(session: Session) -> None:
    make_tree(session.upper, srv__app="new", tmp__x="x")
    dry = session.pack(dry_run=True)
    assert [image.name for image in session.store.list()] == ["base"]
    made = session.pack()
    assert (dry.name, dry.layer) == ("", "")
    assert (dry.kept, made.kept) == (("/srv/app", "/tmp/"), ())
    assert (dry.files, dry.removed, dry.removed_bytes) == (made.files, made.removed, made.removed_bytes)


def test_a_name_that_is_taken_or_none_is_refused(session: Session) -> None:
    session.pack()
    with pytest.raises(AlreadyExistsError):
        session.pack()
    with pytest.raises(InvalidRequestError):
        session.pack(name="../x")


def test_more_entries_than_a_node_should_hold_are_refused(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    make_tree(session.upper, a="a", b="b", c="c")
    monkeypatch.setattr(packing, "MAXIMUM_ENTRIES", 2)
    with pytest.raises(LimitExceededError):
        session.pack()
    session.pack(ScrubRules(remove=("/c",)))


def test_a_pack_that_is_ended_leaves_nothing(session: Session) -> None:
    make_tree(session.upper, **{f"f{number}": "x" for number in range(10)})
    steps = 0

    def count() -> None:
        nonlocal steps
        steps += 1

    session.pack(name="whole", check=count)
    session.store.remove("whole")
    for last in range(1, steps + 1):
        left = iter(range(last - 1))

        def end(left: object = left) -> None:
            if next(left, None) is None:  # type: ignore[call-overload]
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            session.pack(check=end)
        assert [image.name for image in session.store.list()] == ["base"]
        assert len(list((session.store.root / "layers").iterdir())) == 1
        assert list((session.store.root / "staging").iterdir()) == []


def test_equal_sessions_make_equal_layers(session: Session) -> None:
    make_tree(session.upper, srv__app="new")
    assert session.pack().layer == session.pack(name="other").layer


@needs_devices
def test_the_layers_below_show_what_overlayfs_would(tmp_path: Path) -> None:
    low = make_tree(tmp_path / "low", a__d__x="", b__d__x="", c__d__x="", e__x="")
    high = make_tree(tmp_path / "high", b="", c__y="")
    os.mknod(make_tree(high, e="") / "w", stat.S_IFCHR, 0)
    (high / "e").unlink()
    os.mknod(high / "e", stat.S_IFCHR, 0)
    os.setxattr(high / "c", "trusted.overlay.opaque", b"y")
    (low / "link").symlink_to("a")
    expected = {"a": True, "a/d": True, "b": False, "b/d": False, "c": True, "c/d": False, "e": False, "link/d": False}
    with Below([low, high]) as below:
        assert {path: below.is_directory(path.encode()) for path in expected} == expected


@needs_devices
def test_a_packed_image_keeps_its_digests_on_its_way_to_another_host(session: Session, tmp_path: Path) -> None:
    make_tree(session.image, etc__os="base", etc__old="old", srv__d__x="x")
    make_tree(session.upper, srv__app="new")
    os.link(session.upper / "srv" / "app", session.upper / "srv" / "again")
    (session.upper / "srv" / "link").symlink_to("/nowhere")
    (session.opaque("srv/d") / "y").write_text("y")
    session.whiteout("etc/old")
    session.pack()
    export_image(session.store, "packed", tmp_path / "exported")
    there = LocalImageStore(tmp_path / "there", layer_format=LayerFormat.DIRECTORY)
    import_image(there, ImportRequest(path=tmp_path / "exported", name="mine"))
    there.close()
    mine, packed = there.get("mine"), session.store.get("packed")
    assert [layer.digest for layer in mine.layers] == [layer.digest for layer in packed.layers]
    assert mine.config == packed.config
    with pytest.raises(AlreadyExistsError):
        export_image(session.store, "packed", tmp_path / "exported")
    assert {path.name for path in tmp_path.iterdir()} >= {"exported"}
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]
