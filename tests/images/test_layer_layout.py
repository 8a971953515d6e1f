"""Layers laid out by their traces: what is read first lies together, and a damaged file is refused."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsec.base.errors import InvalidRequestError
from dsec.images import erofs
from dsec.images.lazy.erofs.layout import lay_out
from dsec.images.lazy.erofs.metadata import Extent, metadata_extents

_BLOCK = 4096
_CHUNK = 4 << 20


def _file(directory: Path, sizes: dict[str, int]) -> Path:
    chance = random.Random(1)
    tree = directory / "tree"
    for name, size in sizes.items():
        path = tree / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(chance.randbytes(size))
    erofs.make(tree, directory / "layer.erofs")
    return directory / "layer.erofs"


def _place(file: Path, content: bytes) -> int:
    """Return where a content begins in a file."""
    start = file.read_bytes().find(content)
    assert start >= 0
    assert start % _BLOCK == 0
    return start


@pytest.mark.slow
def test_what_is_read_first_lies_together_in_that_order(tmp_path: Path) -> None:
    file = _file(tmp_path, {f"d{number}/large": (3 << 20) + 5000 for number in range(8)})
    contents = [(tmp_path / f"tree/d{number}/large").read_bytes()[: 1 << 20] for number in range(8)]
    wanted = [6, 1, 4]
    # A block in the middle of a file brings the whole of it.
    first = [Extent(_place(file, contents[number]) + 100 * _BLOCK, _BLOCK) for number in wanted]
    moves = lay_out(file, tmp_path / "new.erofs", [*first, Extent(1 << 40, _BLOCK), *first])
    places = [_place(tmp_path / "new.erofs", content) for content in contents]
    order = sorted(range(8), key=lambda number: places[number])
    assert order[:3] == wanted
    assert {places[number] // _CHUNK for number in wanted} <= {0, 1, 2}
    for number, extent in zip(wanted, first, strict=True):
        ((target, count),) = moves.of(extent.start // _BLOCK, 1)
        assert (target * _BLOCK, count) == (places[number] + 100 * _BLOCK, 1)


@pytest.mark.slow
def test_what_is_read_first_begins_with_a_chunk_where_metadata_fills_more_than_one(tmp_path: Path) -> None:
    small = {f"s{number % 40}/{number}": 3000 for number in range(1600)}
    file = _file(tmp_path, {**small, "large": 5 << 20})
    content = (tmp_path / "tree/large").read_bytes()[: 1 << 20]
    lay_out(file, tmp_path / "new.erofs", [Extent(_place(file, content), _BLOCK)])
    assert _place(tmp_path / "new.erofs", content) % _CHUNK == 0


def _chunks(file: Path) -> list[bytes]:
    content = file.read_bytes()
    return [content[start : start + _CHUNK] for start in range(0, len(content), _CHUNK)]


@pytest.mark.slow
@pytest.mark.parametrize("change", ["grown", "added", "removed"])
def test_layers_that_differ_in_one_file_share_nearly_all_chunks(tmp_path: Path, change: str) -> None:
    chance = random.Random(7)
    sizes = {f"d{number // 40}/{number:04}": chance.randrange(4096, 120_000) for number in range(600)}
    sizes["d3/large"] = 10 << 20
    contents = {name: chance.randbytes(size) for name, size in sizes.items()}
    chunks = []
    for version in range(2):
        if version and change == "grown":
            contents["d1/0041"] += b"x" * 9000
        elif version and change == "added":
            contents["d1/new"] = chance.randbytes(50_000)
        elif version:
            del contents["d1/0041"]
        directory = tmp_path / str(version)
        for name, content in contents.items():
            path = directory / "tree" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        erofs.make(directory / "tree", directory / "layer.erofs")
        lay_out(directory / "layer.erofs", directory / "new.erofs", [])
        chunks.append([_chunks(directory / "layer.erofs"), _chunks(directory / "new.erofs")])
    (plain, laid), (plain_later, laid_later) = chunks
    # Metadata is another one, and what lies between the change and the end of the next group that both have.
    assert len(set(laid_later) - set(laid)) <= 4
    assert len(set(plain_later) - set(plain)) > 8
    assert len(laid) <= 1.35 * len(plain)


def test_ends_of_files_lie_behind_their_blocks_where_that_makes_nothing_much_longer(tmp_path: Path) -> None:
    sizes = {"long": 5 * _BLOCK + 7, "nearly": 2 * _BLOCK - 100, "one": _BLOCK + 7, "short": 3000}
    file = _file(tmp_path, sizes)
    lay_out(file, tmp_path / "new.erofs", [])
    (metadata,) = metadata_extents(tmp_path / "new.erofs")
    new = (tmp_path / "new.erofs").read_bytes()
    for name, size in sizes.items():
        content = (tmp_path / "tree" / name).read_bytes()
        end_is_metadata = new.find(content[size // _BLOCK * _BLOCK :]) < metadata.end
        assert end_is_metadata == (name in ("one", "short")), name
        if not end_is_metadata:
            # A mapped file shows the rest of its last block.
            filling = bytes(-size % _BLOCK)
            assert content + filling in new


def test_with_the_last_block_of_a_file_goes_its_end(tmp_path: Path) -> None:
    file = _file(tmp_path, {"long": 5 * _BLOCK + 7})
    content = (tmp_path / "tree/long").read_bytes()
    moves = lay_out(file, tmp_path / "new.erofs", [])
    old, new = (_place(each, content[:_BLOCK]) // _BLOCK for each in (file, tmp_path / "new.erofs"))
    assert moves.of(old, 5) == [(new, 6)]
    assert moves.of(old + 4, 1) == [(new + 4, 2)]
    assert moves.of(old, 4) == [(new, 4)]


def test_a_tree_of_tiny_files_does_not_become_longer(tmp_path: Path) -> None:
    file = _file(tmp_path, {f"d{number % 7}/{number}": number % 900 for number in range(300)})
    lay_out(file, tmp_path / "new.erofs", [])
    assert (tmp_path / "new.erofs").stat().st_size <= file.stat().st_size + _BLOCK


def test_blocks_that_are_nobody_s_data_have_no_place(tmp_path: Path) -> None:
    file = _file(tmp_path, {"large": 1 << 20})
    moves = lay_out(file, tmp_path / "new.erofs", [])
    assert moves.of(0, 1) == []
    assert moves.of(1 << 30, 4) == []


_made: dict[str, Path] = {}


@given(st.data())
def test_a_damaged_file_is_laid_out_or_refused_but_never_more(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    if not _made:
        _made["file"] = _file(tmp_path_factory.mktemp("small"), {"a/one": 9000, "b": 100, "c/d/two": 20_000})
    file = _made["file"]
    content = bytearray(file.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(1024, len(content) - 1))] = data.draw(st.integers(0, 255))
    damaged = file.with_name("damaged.erofs")
    damaged.write_bytes(content)
    try:
        lay_out(damaged, file.with_name("new.erofs"), [Extent(0, len(content))])
    except InvalidRequestError:
        return
    assert file.with_name("new.erofs").stat().st_size <= len(content) + 4 * _BLOCK  # Three files and the metadata.
