"""Say why there is no node: every refusal counts the nodes and names the nearest."""

from __future__ import annotations

from collections import Counter

from dsec.placement.decision import Refusal, Why
from dsec.placement.filter import capable, closest_miss
from dsec.placement.fleet import Fleet, ShapeIndex
from dsec.placement.node_state import NodeState
from dsec.placement.request import PlacementRequest


def explain(
    fleet: Fleet, index: ShapeIndex, request: PlacementRequest, tried: tuple[str, ...], now_s: float
) -> Refusal:
    """Return the refusal of a request for which no node is left."""
    why, brief, detail = _explain(fleet, index, tried, now_s)
    return Refusal(sandbox_id=request.sandbox_id, why=why, brief=brief, detail=detail, tried=tried)


def _explain(fleet: Fleet, index: ShapeIndex, tried: tuple[str, ...], now_s: float) -> tuple[Why, str, str]:
    if not len(fleet):
        return Why.EMPTY, "no node is known", "no view of any node has come"
    could = [state for state in fleet if capable(index.shape, state.view)]
    if not could:
        return Why.INCAPABLE, *closest_miss(index.shape, [state.view for state in fleet])
    if not index.nodes:
        return Why.UNOFFERED, *_unoffered(fleet, could, now_s)
    left = [state for state in index.nodes if state.name not in tried]
    if tried and not any(state.has_room(index.increment) for state in left):
        rest = f"; the other {len(left):,} are full" if left else ""
        return (
            Why.REJECTED,
            f"{len(tried)} {'node was' if len(tried) == 1 else 'nodes were'} tried{rest}",
            f"tried: {', '.join(tried)}",
        )
    return Why.FULL, *_full(fleet, index, could)


def _unoffered(fleet: Fleet, could: list[NodeState], now_s: float) -> tuple[str, str]:
    causes = Counter(fleet.why_not(state, now_s) or "offered" for state in could)
    counted = ", ".join(f"{count:,} {cause}" for cause, count in sorted(causes.items()))
    notes = sorted({f"{state.name}: {state.view.note}" for state in could if state.view.note})
    return f"{len(could):,} of {len(fleet):,} nodes could hold it, and none takes any: {counted}", "; ".join(notes[:3])


def _full(fleet: Fleet, index: ShapeIndex, could: list[NodeState]) -> tuple[str, str]:
    nearest = min(index.nodes, key=lambda state: (state.load_with(index.increment), state.rank))
    shares = nearest.shares_with(index.increment)
    fullest = max(shares._fields, key=lambda name: getattr(shares, name))
    trust = f"; its word counts {nearest.trust.score:.0%}" if nearest.trust.score < 1 else ""
    how_full = f"would be at {nearest.load_with(index.increment):.0%} because of {fullest}{trust}"
    if len(index.nodes) == 1:
        brief = f"the only node that could hold it and takes any, {nearest.name}, {how_full}"
    else:
        brief = f"all {len(index.nodes):,} nodes that could hold it are full; the nearest, {nearest.name}, {how_full}"
    left_out = len(could) - len(index.nodes)
    return brief, f"{left_out:,} more could hold it and take none at the moment" if left_out else ""


def exhausted(request: PlacementRequest, tried: tuple[str, ...]) -> Refusal:
    """Return the refusal of a request that as many nodes as are asked have rejected."""
    return Refusal(
        sandbox_id=request.sandbox_id,
        why=Why.REJECTED,
        brief=f"{len(tried)} nodes were tried, and none took it",
        detail=f"tried: {', '.join(tried)}",
        tried=tried,
    )
