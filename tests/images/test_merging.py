"""Merged layers show what the layers they were made of showed, in whatever stack they stand."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsec.base.errors import HostDiskFullError, ImageNotFoundError, InvalidRequestError
from dsec.images.below import Below
from dsec.images.importers.detect import import_image
from dsec.images.importers.request import ImportRequest
from dsec.images.merge_plan import NEVER, MergeCandidate, MergeRule, plan_merges
from dsec.images.merged import merged_tree
from dsec.images.merging import merge_image, merge_layers
from dsec.images.overlay_merge import has_vain_whiteouts, merge_trees
from dsec.images.store import LocalImageStore
from dsec.images.tree_writer import TreeWriter
from dsec.model.image import ImageConfig, ImageInfo, LayerFormat
from dsec.testing.oci_layouts import tar_of, write_layout
from dsec.testing.overlay_trees import Drawn, layers, make_layer, shown

DAY_S = 86_400.0
ALL = MergeRule(keep_layers=0, everything=True)


def merge_directories(below: Sequence[Path], paths: Sequence[Path], target: Path) -> Path:
    roots = [os.open(path, os.O_RDONLY | os.O_DIRECTORY) for path in paths]
    try:
        with Below(below) as beneath, TreeWriter(target, keep_devices=True) as writer:
            merge_trees(roots, writer, beneath.shows)
    finally:
        for root in roots:
            os.close(root)
    return target


@pytest.mark.root
@given(drawn=st.lists(layers(), min_size=2, max_size=5), data=st.data())
def test_an_overlay_of_merged_layers_shows_what_one_of_the_layers_themselves_does(
    drawn: list[Drawn], data: st.DataObject
) -> None:
    first = data.draw(st.integers(0, len(drawn) - 2), label="first")
    last = data.draw(st.integers(first + 2, len(drawn)), label="last")
    check_merge(drawn, first, last)


@pytest.mark.root
@pytest.mark.parametrize(
    "drawn",
    [
        # A whiteout, or a file, between two directories keeps the upper one from being merged with what is lower.
        [{"a": "directory", "a/b": "file"}, {"a": "whiteout"}, {"a": "directory", "a/c": "file"}],
        [{"a": "directory", "a/b": "file"}, {"a": "file"}, {"a": "directory", "a/c": "file"}],
        [{"a": "directory", "a/b": "file"}, {"a": "opaque", "a/a": "file"}, {"a": "directory", "a/c": "file"}],
        # A whiteout goes on hiding what is below it.
        [{"a": "file", "b": "file"}, {"a": "whiteout"}, {"c": "file"}],
        # What was hidden and made again.
        [{"a": "file"}, {"a": "whiteout"}, {"a": "link"}],
        # One of several names is replaced: the others stay one inode.
        [{"c": "file"}, {"a": "file", "b": "hard", "c": "hard"}, {"a": "file"}],
    ],
)
def test_each_rule_of_overlayfs_is_kept(drawn: list[Drawn]) -> None:
    check_merge(drawn, 1, 3)
    check_merge(drawn, 0, 3)
    check_merge(drawn, 0, 2)


def check_merge(drawn: list[Drawn], first: int, last: int) -> None:
    with tempfile.TemporaryDirectory(prefix="dsec-") as name:
        top = Path(name)
        paths = [make_layer(top / str(number), each, number) for number, each in enumerate(drawn)]
        (top / "empty").mkdir()
        expected = shown(paths, top / "empty")
        assert {entry.path.encode()[1:] for entry in merged_tree(paths, limit=1000)} == expected.keys() - {b""}
        merged = merge_directories(paths[:first], paths[first:last], top / "merged")
        root = os.open(merged, os.O_RDONLY | os.O_DIRECTORY)
        with Below(paths[:first]) as beneath:
            assert not has_vain_whiteouts(root, beneath.shows)
        os.close(root)
        assert shown([*paths[:first], merged, *paths[last:]], top / "empty") == expected


def candidate(name: str, size: int = 1, *, day: float | None = None, shared: str = "") -> MergeCandidate:
    created_s = None if day is None else day * DAY_S
    return MergeCandidate(digest=name, size_bytes=size, created_s=created_s, shared_with=tuple(shared.split()))


def planned(candidates: Sequence[MergeCandidate], **rule: float) -> str:
    groups = plan_merges(candidates, MergeRule(**{"keep_layers": 0, **rule}))  # type: ignore[arg-type]
    return " ".join("".join(group.digests) for group in groups)


class TestPlan:
    def test_neighbours_merge_up_to_the_threshold_and_the_base_stays_apart(self) -> None:
        sizes = [candidate(name, size) for name, size in zip("abcdef", (9, 4, 4, 4, 20, 1), strict=True)]
        assert planned(sizes, threshold_bytes=10) == "a bc d e f"
        assert planned(sizes, threshold_bytes=100) == "a bcdef"
        assert planned(sizes, threshold_bytes=0) == "a b c d e f"

    def test_what_others_share_stays_apart(self) -> None:
        stack = [candidate("a"), candidate("b", shared="python"), *(candidate(name) for name in "cde")]
        assert planned(stack) == "a b cde"
        groups = plan_merges(stack, MergeRule(keep_layers=0))
        assert "shared with python" in groups[1].reason
        assert groups[0].reason

    def test_what_was_made_at_another_time_stays_apart(self) -> None:
        days = zip("abcdefg", (1, 1.2, 1.4, 30, 30.5, 31, None), strict=True)
        assert planned([candidate(name, day=day) for name, day in days]) == "a bc defg"

    def test_few_layers_stay_as_they_are_and_all_are_merged_when_asked(self) -> None:
        stack = [candidate(name, shared="other") for name in "abcde"]
        assert planned(stack, keep_layers=5) == "a b c d e"
        assert planned(stack, keep_layers=4, everything=True) == "abcde"

    @given(
        st.lists(
            st.builds(candidate, st.uuids().map(str), st.integers(0, 9), day=st.none() | st.integers(0, 3)), min_size=1
        ),
        st.integers(0, 30),
    )
    def test_a_plan_keeps_all_layers_in_order_and_its_bound(self, stack: list[MergeCandidate], threshold: int) -> None:
        groups = plan_merges(stack, MergeRule(threshold_bytes=threshold, keep_layers=0))
        assert [digest for group in groups for digest in group.digests] == [layer.digest for layer in stack]
        sizes = {layer.digest: layer.size_bytes for layer in stack}
        for group in groups:
            assert len(group.digests) == 1 or sum(sizes[digest] for digest in group.digests) <= threshold
        assert all(group.reason for group in groups[:-1])


class MergingOfStoredImages:
    layer_format: LayerFormat

    def make(self, store: LocalImageStore, tmp_path: Path, name: str, *drawn: Drawn) -> list[str]:
        digests = [
            store.add_layer(make_layer(tmp_path / f"{name}-{number}", each, number))
            for number, each in enumerate(drawn)
        ]
        store.add_image(name, digests, ImageConfig(env={"A": "1"}), source="test")
        return digests

    def test_an_image_is_merged_in_place_and_what_it_was_made_of_goes(
        self, store: LocalImageStore, tmp_path: Path
    ) -> None:
        before = self.make(store, tmp_path, "mine", {"a": "file"}, {"b": "file"}, {"a": "whiteout", "c": "capable"})
        report = merge_image(store, "mine", rule=ALL)
        assert (report.before, len(report.image.layers)) == (3, 1)
        assert store.get("mine") == report.image
        assert report.image.config.env == {"A": "1"}
        left = [path.name for path in (store.root / "layers").iterdir()]
        assert left == [report.image.layers[0].digest[7:]] != [before[0][7:]]
        store.verify("mine")
        (root,) = store.mount(["mine"]).layer_paths
        assert sorted(os.listdir(root)) == ["b", "c"]

    def test_a_result_of_another_name_leaves_the_image_and_shares_what_others_share(
        self, store: LocalImageStore, tmp_path: Path
    ) -> None:
        before = self.make(store, tmp_path, "mine", {"a": "file"}, {"b": "file"}, {"c": "file"}, {"b": "whiteout"})
        store.add_image("other", before[:2], ImageConfig(), source="test")
        report = merge_image(store, "mine", to="small", rule=MergeRule(keep_layers=2))
        assert [layer.digest for layer in report.image.layers[:2]] == before[:2]
        assert len(report.image.layers) == 3
        assert [layer.digest for layer in store.get("mine").layers] == before
        assert len(report.reasons) == 2

    def test_few_layers_stay_as_they_are(self, store: LocalImageStore, tmp_path: Path) -> None:
        self.make(store, tmp_path, "mine", {"a": "file"}, {"b": "file"})
        before = store.get("mine")
        assert merge_image(store, "mine").image == before

    def test_what_cannot_be_merged_is_said(self, store: LocalImageStore) -> None:
        with pytest.raises(ImageNotFoundError):
            merge_image(store, "none")
        with pytest.raises(InvalidRequestError):
            merge_image(store, "none", rule=MergeRule(threshold_bytes=0))


@pytest.mark.root
class TestErofs(MergingOfStoredImages):
    layer_format = LayerFormat.EROFS


@pytest.mark.root
class TestDirectory(MergingOfStoredImages):
    layer_format = LayerFormat.DIRECTORY


def imported(store: LocalImageStore, tmp_path: Path, name: str, stack: Sequence[bytes], **options: Any) -> ImageInfo:
    days = options.pop("days", ())
    layout = write_layout(tmp_path / f"layout-{name}", stack, days=days)
    return import_image(store, ImportRequest(path=layout, name=name, **options))


def steps(*names: str) -> list[bytes]:
    """Return layers, each with one file that tells its name."""
    return [tar_of(**{name: name, "etc": None}) for name in names]


def trees(store: LocalImageStore, *names: str) -> list[list[str]]:
    return [sorted(os.listdir(path)) for path in store.mount(names).layer_paths]


@pytest.mark.root
class TestImports:
    def test_small_layers_that_were_made_together_become_one(self, store: LocalImageStore, tmp_path: Path) -> None:
        stack, days = steps(*"abcdefg"), (0, 0, 0, 30, 30.1, 30.2, 30.3)
        imported(store, tmp_path, "mine", stack, days=days)
        assert trees(store, "mine") == [["a", "etc"], ["b", "c", "etc"], ["d", "e", "etc", "f", "g"]]
        # What went into them is not kept, and is not unpacked again either.
        assert len(list((store.root / "layers").iterdir())) == 3
        told: list[str] = []
        again = imported(store, tmp_path, "again", stack, days=days, progress=told.append)
        assert again.layers == store.get("mine").layers
        assert not [line for line in told if line.startswith(("unpacking", "merging"))]

    def test_an_image_on_the_same_base_shares_its_merged_layers(self, store: LocalImageStore, tmp_path: Path) -> None:
        base = steps(*"abcdef")
        first = imported(store, tmp_path, "first", [*base, *steps("x", "y")], days=(*[0] * 6, 30, 30))
        second = imported(store, tmp_path, "second", [*base, *steps("z")], days=(*[0] * 6, 60))
        assert len(first.layers) == len(second.layers) == 3
        assert second.layers[:2] == first.layers[:2]
        assert trees(store, "second")[2] == ["etc", "z"]

    def test_what_was_merged_on_another_base_is_merged_anew(self, store: LocalImageStore, tmp_path: Path) -> None:
        # What a whiteout in it hides depends on what lies below.
        upper = [*steps("b", "c"), tar_of(WHx="", d="1"), *steps("e", "f")]
        imported(store, tmp_path, "first", [*steps("a"), *upper])
        imported(store, tmp_path, "second", [*steps("x"), *upper])
        assert trees(store, "first") == [["a", "etc"], ["b", "c", "d", "e", "etc", "f"]]
        assert trees(store, "second") == [["etc", "x"], ["b", "c", "d", "e", "etc", "f", "x"]]

    def test_layers_of_other_images_stay_apart(self, store: LocalImageStore, tmp_path: Path) -> None:
        base = imported(store, tmp_path, "base", steps(*"ab"))
        mine = imported(store, tmp_path, "mine", steps(*"abcdefg"))
        assert mine.layers[:2] == base.layers
        assert len(mine.layers) == 3

    def test_nothing_is_merged_where_that_is_asked_for(self, store: LocalImageStore, tmp_path: Path) -> None:
        stack = steps(*"abcdefg")
        assert len(imported(store, tmp_path, "apart", stack, merge=NEVER).layers) == 7
        assert len(imported(store, tmp_path, "few", stack, merge=MergeRule(keep_layers=7)).layers) == 7
        assert len(imported(store, tmp_path, "small", stack, merge=MergeRule(threshold_bytes=1)).layers) == 7

    def test_a_layer_that_hides_all_below_is_the_lowest(self, store: LocalImageStore, tmp_path: Path) -> None:
        imported(store, tmp_path, "mine", [*steps("a"), tar_of(**{"WHWH.opq": "", "b": "2"}), *steps("c")])
        assert trees(store, "mine") == [["b"], ["c", "etc"]]

    def test_a_whiteout_of_nothing_is_left_out_where_it_hides_nothing(
        self, store: LocalImageStore, tmp_path: Path
    ) -> None:
        # Overlayfs would list it in a directory that no other layer has, and nobody could open it.
        upper = tar_of(d=None, d__WHnone="", d__new="1", WHa="")
        imported(store, tmp_path, "mine", [*steps("a"), upper])
        (_, top) = store.mount(["mine"]).layer_paths
        assert sorted(os.listdir(top)) == ["a", "d"]
        assert os.listdir(top / "d") == ["new"]
        # In another stack the same layer hides what is there.
        imported(store, tmp_path, "other", [tar_of(d=None, d__none="1"), upper])
        (_, top) = store.mount(["other"]).layer_paths
        assert sorted(os.listdir(top / "d")) == ["new", "none"]

    def test_a_failed_import_leaves_none_of_its_merged_layers(
        self, store: LocalImageStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(*arguments: object, **options: object) -> ImageInfo:
            raise HostDiskFullError("full")

        monkeypatch.setattr(store, "add_image", fail)
        with pytest.raises(HostDiskFullError):
            imported(store, tmp_path, "mine", steps(*"abcdefg"))
        assert list((store.root / "layers").iterdir()) == []
        assert list((store.root / "diffs").iterdir()) == []


_MERGER = """
import sys
from pathlib import Path
from dsec.images.merge_plan import MergeRule
from dsec.images.merging import merge_image
from dsec.images.store import LocalImageStore
from dsec.model.image import LayerFormat

store = LocalImageStore(Path(sys.argv[1]), layer_format=LayerFormat(sys.argv[2]))
print("open", flush=True)
merge_image(store, "mine", rule=MergeRule(keep_layers=0, everything=True))
print("merged", flush=True)
"""


@pytest.mark.root
@pytest.mark.slow
def test_killed_while_merging_the_image_is_the_old_one_or_the_new_and_nothing_else_is_left(
    open_store: Callable[..., LocalImageStore], tmp_path: Path
) -> None:
    store = open_store()
    trees = [tmp_path / name for name in "abc"]
    for tree in trees:
        tree.mkdir()
        for number in range(400):
            (tree / f"{tree.name}{number}").write_text("x" * number)
    apart = [store.add_layer(tree) for tree in trees]
    together = merge_layers(store, apart)
    # What this process protects would be left in any case.
    store.let_go([*apart, together])
    kind = store.layer_format()[0].value
    for seed in range(6):
        store.add_image("mine", [store.add_layer(tree) for tree in trees], ImageConfig(), source="test")
        command = [sys.executable, "-c", _MERGER, str(store.root), kind]
        worker = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert worker.stdout is not None
        assert worker.stdout.readline() == "open\n"
        # The moment of the kill is the input of this test: before, within and after what takes longest.
        time.sleep(random.Random(seed).uniform(0.0, 0.6))
        worker.kill()
        worker.communicate()
        found = [layer.digest for layer in store.get("mine").layers]
        assert found in (apart, [together])
        open_store().close()
        left = {path.name for path in (store.root / "layers").iterdir()}
        assert left == {digest.removeprefix("sha256:") for digest in found}
        store.verify("mine")
    assert [layer.digest for layer in merge_image(store, "mine", rule=ALL).image.layers] == [together]
