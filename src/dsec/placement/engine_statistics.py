"""Figures of one placement engine."""

from __future__ import annotations

from dsec.model.value import Value


class EngineStatistics(Value, frozen=True):
    """What an engine did so far.

    Attributes:
        nodes: known now.
        offered: of these, how many get sandboxes.
        open: placements that no node has answered.
        placed: placements made, further ones of the same sandbox included.
        scanned: of these, how many looked at every node.
        rejected, failed: what nodes answered.
        refused: requests for which there was no node.
        own_weight: for how many placements each own one counts; see `dsec.placement.others`.
        usual_creation_s: smoothed time of a creation; None until one was measured.
    """

    nodes: int
    offered: int
    open: int
    placed: int
    scanned: int
    rejected: int
    failed: int
    refused: int
    own_weight: int
    usual_creation_s: float | None
