"""What `dsec doctor` says of the worker that drives episodes: whether it runs, and whether it answers."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import anyio

from dsec.base.errors import DsecError
from dsec.cli.host_checks import Check, Need
from dsec.cli.worker import answer, states
from dsec.linux.probe import Finding, found, missing
from dsec.sdk.background import WORKER, is_held

_ANSWER_S = 5.0


def worker_check(worker_dir: Path) -> Check:
    """Return the row of the worker that holds a directory."""
    return Check(
        name="worker",
        title="worker of episodes",
        enables="episodes that go on whoever leaves",
        resolution="nothing is to be done: `dsec episode` starts it; `dsec worker up` runs it in the foreground",
        need=Need.OPTIONAL,
        probe=partial(_look, worker_dir),
    )


def _look(worker_dir: Path) -> Finding:
    if not is_held(worker_dir, WORKER):
        return missing("none runs")
    log = f"`dsec worker status` says its process; its log is {worker_dir / WORKER.log}"

    async def ask() -> dict[str, Any]:
        with anyio.fail_after(_ANSWER_S):
            return await answer(worker_dir)

    try:
        told = anyio.run(ask)
    except TimeoutError:
        return missing(f"runs, and does not answer within {_ANSWER_S:g} s", log)
    except DsecError as error:
        return missing(f"runs, and answers: {error.brief}", log)
    if not told["answers"]:
        return missing("runs, and does not answer", log)
    return found(f"answers; episodes: {states(told['episodes'])}")
