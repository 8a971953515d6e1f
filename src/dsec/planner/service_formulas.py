"""Formulas that worksheets may name: RL phases, instances, verification, tokens, services, retries, recovery."""

from __future__ import annotations

from dsec.planner.formula import Formula, formulas

FORMULAS: tuple[Formula, ...] = formulas()
