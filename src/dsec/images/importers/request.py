"""What an importer is asked to do, and what every importer returns."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec

from dsec.images.command import Progress, silent
from dsec.images.entries import Entry
from dsec.images.importers.toolkit import placed
from dsec.images.merge_plan import DEFAULT_RULE, MergeRule
from dsec.images.tree_writer import DEFAULT_LIMITS, ArchiveLimits
from dsec.model.image import FingerprintRules, ImageConfig, StateHooks

_DEFAULT_CONFIG = ImageConfig()
_NO_HOOKS = StateHooks()


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportRequest:
    """One import.

    Attributes:
        path: archive or directory.
        name: name of the image to make.
        config: settings of the image where the source brings none.
        hooks: commands in place of those that the source brings; one that is empty here is the source's.
        fingerprint: rules of its clean state, in place of those that the source brings; None: those.
        limits: bounds on what is unpacked.
        progress: takes lines for people.
        left_out: paths that are not taken over.
        source: told as the image's source; None: the path.
        merge: which layers of an image become one.
        onto: stacks of layers, from the lowest up: if an image begins with one of them, it is made without it, to be
            stacked on others; the longest counts.
        as_layer: what is imported is to be stacked on other images (see `dsec.images.importers.toolkit`); for a
            directory or a tar of one.
        at: directory of the sandbox where it is to lie, without a leading slash; empty: its root. With `as_layer` only.
    """

    path: Path
    name: str
    config: ImageConfig = _DEFAULT_CONFIG
    hooks: StateHooks = _NO_HOOKS
    fingerprint: FingerprintRules | None = None
    limits: ArchiveLimits = DEFAULT_LIMITS
    progress: Progress = silent
    left_out: frozenset[bytes] = frozenset()
    source: str | None = None
    merge: MergeRule = DEFAULT_RULE
    onto: tuple[tuple[str, ...], ...] = ()
    as_layer: bool = False
    at: bytes = b""

    def settings(self, brought: ImageConfig | None = None) -> ImageConfig:
        """Return the settings of the image, given those that its source brings."""
        config = self.config if brought is None else brought
        hooks = msgspec.structs.replace(
            config.hooks,
            export_state=self.hooks.export_state or config.hooks.export_state,
            import_state=self.hooks.import_state or config.hooks.import_state,
        )
        rules = config.fingerprint if self.fingerprint is None else self.fingerprint
        return msgspec.structs.replace(config, hooks=hooks, fingerprint=rules)

    def placed(self, entry: Entry) -> Entry:
        """Return an entry of the source as it is in the layer."""
        return placed(entry, self.at) if self.as_layer else entry

    @property
    def told_source(self) -> str:
        return self.source if self.source is not None else str(self.path)
