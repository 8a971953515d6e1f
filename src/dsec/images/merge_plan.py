"""Which neighbouring layers of an image become one. Pure.

Theory. Each layer of a stack costs: one more directory to look into whenever a path is resolved, one more mount, one
more manifest. What a layer saves is what others share with it. So layers that nobody shares and that change together
are merged, and those that are shared, or change at another rate, stay apart: else a new tool would mean a new base for
everybody. In this order, and each decision with its reason:

1. an image of no more than `keep_layers` layers stays as it is (three to five are best, says the training report);
2. the lowest layer is the base, which changes least and is shared most: it stays apart;
3. a layer that another image has too stays apart;
4. layers that were made more than `gap_s` apart, as the image's history says, were not made together and stay apart;
5. what is left is merged with its neighbours as long as their sizes add up to `threshold_bytes` at most (arXiv
   2609.22978: small neighbouring layers are merged below 3 GiB).

Where no history says otherwise, layers count as made together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from dsec.base.units import GIB, format_size

BEST_LAYERS = 5
"""More layers cost more than they give, says the training report."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeRule:
    """When layers are merged.

    Attributes:
        threshold_bytes: of one merged layer; 0: nothing is merged.
        keep_layers: an image of no more layers stays as it is.
        gap_s: layers whose times are further apart stay apart.
        everything: merge the base and what others share as well; only `threshold_bytes` counts.
    """

    threshold_bytes: int = 3 * GIB
    keep_layers: int = BEST_LAYERS
    gap_s: float = 86_400.0
    everything: bool = False


DEFAULT_RULE = MergeRule()
NEVER = MergeRule(threshold_bytes=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeCandidate:
    """A layer, as far as it matters whether it is merged.

    Attributes:
        digest: the layer's.
        size_bytes: its size.
        created_s: when it was made, as its image's history says; None: nobody says.
        shared_with: names of other images that have it.
    """

    digest: str
    size_bytes: int
    created_s: float | None = None
    shared_with: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeGroup:
    """Neighbours that become one layer, or one that stays alone.

    Attributes:
        digests: from the lowest up.
        reason: why it does not go on upwards, for people; empty for the uppermost.
    """

    digests: tuple[str, ...]
    reason: str = ""


def plan_merges(layers: Sequence[MergeCandidate], rule: MergeRule = DEFAULT_RULE) -> tuple[MergeGroup, ...]:
    """Return the layers of an image in groups, from the lowest up; each group becomes one layer."""
    if not rule.threshold_bytes:
        return _alone(layers, "nothing is merged")
    if len(layers) <= rule.keep_layers:
        return _alone(layers, f"{len(layers)} layers are few enough")
    groups: list[MergeGroup] = []
    current = [layers[0]]
    for below, above in pairwise(layers):
        reason = _boundary(below, above, rule, is_base=below is layers[0])
        size_bytes = sum(layer.size_bytes for layer in current) + above.size_bytes
        if not reason and size_bytes > rule.threshold_bytes:
            reason = f"together they would have {format_size(size_bytes)}"
        if reason:
            groups.append(_group(current, reason))
            current = []
        current.append(above)
    return (*groups, _group(current, ""))


def _boundary(below: MergeCandidate, above: MergeCandidate, rule: MergeRule, *, is_base: bool) -> str:
    """Return why two neighbours stay apart; empty: they need not."""
    if rule.everything:
        return ""
    for layer in (below, above):
        if layer.shared_with:
            return f"{layer.digest[7:19]} is shared with {layer.shared_with[0]}"
    if is_base:
        return "the lowest is the base"
    if below.created_s is None or above.created_s is None:
        return ""
    if abs(above.created_s - below.created_s) > rule.gap_s:
        return f"they were made {abs(above.created_s - below.created_s) / 86_400:.0f} days apart"
    return ""


def _alone(layers: Sequence[MergeCandidate], reason: str) -> tuple[MergeGroup, ...]:
    return tuple(_group([layer], "" if layer is layers[-1] else reason) for layer in layers)


def _group(layers: Sequence[MergeCandidate], reason: str) -> MergeGroup:
    return MergeGroup(digests=tuple(layer.digest for layer in layers), reason=reason)
