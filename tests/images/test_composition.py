"""What an environment is made of, and how often its layers changed."""

from __future__ import annotations

from pathlib import Path

import pytest

from dsec.images.composition import LayerKind, changes, composition
from dsec.images.history import MAXIMUM_VERSIONS, LayerStory, Version
from dsec.images.importers.detect import import_image
from dsec.images.importers.request import ImportRequest
from dsec.images.merge_plan import NEVER
from dsec.images.merging import merge_image
from dsec.images.store import LocalImageStore
from dsec.model.image import ImageConfig, LayerFormat
from dsec.testing.oci_layouts import tar_of, write_layout


def versions(*stacks: str) -> list[Version]:
    return [
        Version(name="x", image_id=stack, created_at_s=number, layers=tuple(LayerStory(digest=each) for each in stack))
        for number, stack in enumerate(stacks)
    ]


class TestChanges:
    def test_each_place_has_a_rate_of_its_own(self) -> None:
        known = versions("abc", "abd", "abe", "fbe")
        assert [changes(known, place) for place in range(3)] == [(1, 3), (0, 3), (2, 3)]

    def test_the_same_under_another_tag_is_no_version_and_one_version_says_nothing(self) -> None:
        assert changes(versions("ab"), 0) == (0, 0)
        assert changes(versions("ab", "ab", "ac"), 1) == (1, 1)

    def test_only_the_last_versions_count_and_those_that_have_the_place(self) -> None:
        known = versions(*(f"a{letter}" for letter in "bcdefghijklmnop"), "a", "az")
        assert changes(known, 1) == (10, 10)
        assert changes(known, 0) == (0, 10)
        assert changes(known, 7) == (0, 0)


@pytest.fixture
def digests(store: LocalImageStore, tmp_path: Path) -> dict[str, str]:
    found = {}
    for name in "abcdef":
        (tmp_path / name).mkdir()
        (tmp_path / name / name).write_text(name)
        found[name] = store.add_layer(tmp_path / name)
    return found


def add(store: LocalImageStore, digests: dict[str, str], name: str, stack: str) -> None:
    store.add_image(name, [digests[each] for each in stack], ImageConfig(), source="test")


def test_kinds_rates_and_who_shares_a_layer(store: LocalImageStore, digests: dict[str, str]) -> None:
    add(store, digests, "python", "a")
    for tag, stack in (("v1", "abc"), ("v2", "abd"), ("v3", "abe")):
        add(store, digests, f"agent:{tag}", stack)
    add(store, digests, "other", "ab")
    add(store, digests, "repo:v7", "f")
    found = composition(store, "agent:v3", "repo:v7", ("python",))
    assert found.images == ("agent:v3", "repo:v7", "python")
    kinds = [(layer.kind, layer.changed, layer.versions) for layer in found.layers]
    assert kinds == [
        (LayerKind.BASE, 0, 2),
        (LayerKind.RUNTIME, 0, 2),
        (LayerKind.TOOLS, 2, 2),
        (LayerKind.WORKSPACE, 0, 0),
    ]
    assert [layer.shared_with for layer in found.layers] == [
        ("agent:v1", "agent:v2", "other"),
        ("agent:v1", "agent:v2", "other"),
        (),
        (),
    ]
    assert [layer.entries for layer in found.layers] == [2] * 4
    assert all(layer.here_bytes == layer.size_bytes for layer in found.layers)
    assert found.warnings == ()


def test_a_name_that_moves_is_a_new_version_and_is_forgotten_with_the_last_tag(
    store: LocalImageStore, digests: dict[str, str]
) -> None:
    for stack in ("ab", "ac", "bc", "bc"):
        add(store, digests, "mine", stack)
    (first, second) = composition(store, "mine").layers
    assert (first.changed, first.versions, second.changed) == (1, 2, 1)
    for _ in range(MAXIMUM_VERSIONS):
        add(store, digests, "mine", "ab")
        add(store, digests, "mine", "ac")
    assert len(store.history.versions("mine")) == MAXIMUM_VERSIONS
    store.remove("mine")
    assert list((store.root / "history").iterdir()) == []


def test_a_damaged_note_costs_a_version_and_nothing_else(store: LocalImageStore, digests: dict[str, str]) -> None:
    add(store, digests, "mine", "ab")
    add(store, digests, "mine", "ac")
    (note,) = (store.root / "history").iterdir()
    note.write_bytes(b"\xff{}\n" + note.read_bytes().splitlines()[1] + b"\n[\n")
    assert composition(store, "mine").layers[1].versions == 0
    add(store, digests, "mine", "ad")
    assert composition(store, "mine").layers[1].versions == 1


def test_many_layers_and_a_restless_one_below_a_calm_one_are_warned_of(
    store: LocalImageStore, digests: dict[str, str]
) -> None:
    for tag, stack in (("v1", "abf"), ("v2", "acf"), ("v3", "adf")):
        add(store, digests, f"mine:{tag}", stack)
    (warning,) = composition(store, "mine:v3").warnings
    assert "changes least should lie lowest" in warning
    add(store, digests, "many", "abcdef")
    (warning,) = composition(store, "many").warnings
    assert "6 layers" in warning
    assert "dsec image merge many" in warning


@pytest.mark.root
def test_what_an_images_history_tells_is_told_of_its_layers_merged_or_not(
    store: LocalImageStore, tmp_path: Path
) -> None:
    stack = [tar_of(**{name: name}) for name in "abcdef"]
    layout = write_layout(tmp_path / "layout", stack, days=(0, 0, 0, 30, 30, 30))
    import_image(store, ImportRequest(path=layout, name="apart", merge=NEVER))
    apart = composition(store, "apart").layers
    days = [round((layer.created_s or 0) - (apart[0].created_s or 0)) // 86_400 for layer in apart]
    assert days == [0, 0, 0, 30, 30, 30]
    assert all(layer.made_by.startswith("step 2026-") for layer in apart)
    report = merge_image(store, "apart", to="merged")
    assert len(report.image.layers) == 3
    merged = composition(store, "merged").layers
    assert [layer.made_by for layer in merged] == [apart[place].made_by for place in (0, 2, 5)]
    assert len(store.get("apart").layers) == 6


@pytest.mark.root
def test_merging_goes_by_the_times_that_were_told(store: LocalImageStore, tmp_path: Path) -> None:
    stack = [tar_of(**{name: name}) for name in "abcdef"]
    layout = write_layout(tmp_path / "layout", stack, days=(0, 0, 0, 30, 30, 30))
    import_image(store, ImportRequest(path=layout, name="mine"))
    found = composition(store, "mine")
    assert [(layer.entries, layer.format) for layer in found.layers] == [
        (2, LayerFormat.EROFS),
        (3, LayerFormat.EROFS),
        (4, LayerFormat.EROFS),
    ]
    assert "30" not in found.layers[1].made_by
    assert found.layers[2].made_by.startswith("step 2026-01-31")
