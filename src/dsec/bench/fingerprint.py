"""`fingerprint`: tell whether a sandbox is clean, on an image of 20,000 files.

The reference is what one would do without: hash every file of the sandbox, inside of it, with the page cache warm. Ours
looks at what could have changed, so that neither the number of files nor their size counts, but what was written does
(up to the bound of entries that are looked at) and so does what the image declares. Each is a sandbox of its own, and
all are compared in turn.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import anyio.to_thread
import msgspec

from dsec.base.errors import RuntimeFailedError
from dsec.base.units import MIB
from dsec.bench.context import BenchContext
from dsec.bench.distribution import distribution
from dsec.bench.report import Report, make_report
from dsec.bench.sampling import Sample, alternate, timed
from dsec.images.importers.directory import import_directory
from dsec.images.importers.request import ImportRequest
from dsec.images.store import LocalImageStore
from dsec.model.image import FingerprintRules, ImageInfo
from dsec.model.process import CommandRequest
from dsec.model.sandbox import Resources, SandboxSpec
from dsec.node.node import Node
from dsec.sdk.state import state_of

_FILES = 20_000
_IN_A_DIRECTORY = 100
_FILE_BYTES = 4096
_TOP = "srv/files"
_DECLARED = 100
_ROLLBACK = "rollback, the comparison included"
_ROLLBACK_CHECKED = "rollback, a check of the image's own (`true`) included"
_REFERENCE = "hash all files inside the sandbox"
_HASH_ALL = CommandRequest(
    argv=("sh", "-c", "find / -xdev -type f -print0 | xargs -0 sha256sum | sha256sum"), timeout_s=600
)
_WRITE_MANY = CommandRequest(
    argv=("sh", "-c", "mkdir /srv/more; cd /srv/more; for n in $(seq 2000); do : > $n; done"), timeout_s=300
)


def _names(count: int) -> Iterator[str]:
    for number in range(count):
        yield f"{number // _IN_A_DIRECTORY}/{number % _IN_A_DIRECTORY}"


def _make_tree(top: Path, count: int) -> None:
    for name in _names(count):
        path = top / _TOP / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(os.urandom(_FILE_BYTES))


def _rules(count: int) -> dict[str, FingerprintRules]:
    declared = tuple(f"/{_TOP}/{name}" for name, _ in zip(_names(count), range(_DECLARED), strict=False))
    return {
        "clean": FingerprintRules(),
        f"{len(declared)} files declared by metadata": FingerprintRules(files=declared),
        f"{len(declared)} files declared by content": FingerprintRules(contents=declared),
        _ROLLBACK_CHECKED: FingerprintRules(command=("true",)),
    }


def _make_images(store: LocalImageStore, base: str, tree: Path, count: int) -> dict[str, str]:
    """Make an image for each set of rules, and return their names."""
    _make_tree(tree, count)
    added = import_directory(store, ImportRequest(path=tree, name="bench-files"))
    image: ImageInfo = store.get(base)
    names: dict[str, str] = {}
    for number, (what, rules) in enumerate(_rules(count).items()):
        config = msgspec.structs.replace(image.config, fingerprint=rules)
        layers = [layer.digest for layer in (*image.layers, *added.layers)]
        names[what] = store.add_image(f"bench-files-{number}", layers, config, source="dsec bench").name
    return names


class _Subject:
    """One sandbox that is compared with its clean state."""

    def __init__(self, node: Node, sandbox_id: str, *, is_clean: bool = True) -> None:
        self._node, self._sandbox_id, self._is_clean = node, sandbox_id, is_clean

    async def compared(self) -> float:
        with timed() as watch:
            report = await state_of(self._node).fingerprint(self._sandbox_id)
        if report.is_clean is not self._is_clean:
            raise RuntimeFailedError("a fingerprint says the contrary", detail="; ".join(report.differences))
        return watch.seconds

    async def rolled_back(self) -> float:
        with timed() as watch:
            await self._node.rollback(self._sandbox_id)
        return watch.seconds

    async def run(self, request: CommandRequest) -> float:
        with timed() as watch:
            result = await self._node.run(self._sandbox_id, request)
        if result.status.exit_code != 0:
            raise RuntimeFailedError("the guest could not do it", detail=result.stderr.decode(errors="replace"))
        return watch.seconds

    async def hashed(self) -> float:
        return await self.run(_HASH_ALL)


async def bench_fingerprint(context: BenchContext) -> Report:
    """Measure comparisons by what is declared and what was written, beside a hash over all files."""
    count = context.options.count or _FILES
    context.progress.say(f"making an image of {count} files")
    names = await anyio.to_thread.run_sync(_prepare, context, count)
    async with AsyncExitStack() as stack:
        node = await stack.enter_async_context(context.workplace.embedded())

        async def subject(image: str, *, is_clean: bool = True) -> _Subject:
            spec = SandboxSpec(image=image, resources=Resources(disk_bytes=256 * MIB))
            return _Subject(node, (await node.create(spec)).sandbox_id, is_clean=is_clean)

        subjects = {what: await subject(image) for what, image in names.items()}
        dirty = await subject(names["clean"], is_clean=False)
        await dirty.run(_WRITE_MANY)
        subjects["2,000 files written"] = dirty
        contestants: dict[str, Sample] = {what: each.compared for what, each in subjects.items()}
        contestants[_ROLLBACK_CHECKED] = subjects[_ROLLBACK_CHECKED].rolled_back
        contestants[_ROLLBACK] = (await subject(names["clean"])).rolled_back
        contestants[_REFERENCE] = (await subject(names["clean"])).hashed
        rounds = max(5, context.options.samples // 5)
        seconds = await alternate(contestants, rounds=rounds, progress=context.progress)
    return _report(context, seconds, count)


def _prepare(context: BenchContext, count: int) -> dict[str, str]:
    with context.workplace.images_of_embedded() as store:
        return _make_images(store, context.workplace.image, context.workplace.directory / "tree", count)


def _report(context: BenchContext, seconds: dict[str, list[float]], count: int) -> Report:
    series: list[dict[str, Any]] = [
        {"what": what, "files_of_the_image": count, "ms": distribution(values, scale=1e3)}
        for what, values in seconds.items()
        if what != _REFERENCE
    ]
    return make_report(
        "fingerprint",
        "ms",
        "lower",
        ours=distribution(seconds["clean"], scale=1e3),
        references={_REFERENCE: distribution(seconds[_REFERENCE], scale=1e3)},
        series=series,
        host=context.host,
    )
