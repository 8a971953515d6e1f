"""Formulas that worksheets may name: critical path, environments, memory, images, pause, placement, queues."""

from __future__ import annotations

from dsec.planner.formula import Formula, formulas

FORMULAS: tuple[Formula, ...] = formulas()
