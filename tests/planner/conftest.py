"""A small workload that tests change line by line."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dsec.planner.document import parse_document
from dsec.planner.workload import Workload
from dsec.planner.workload_reading import check_deadlines, read_workload

_TEXT = """\
kind = "workload"
title = "Repair"

[arrivals]
rate = "10 /s"
pattern = "uniform"

[goal]
share_in_time = "95 %"

[class.repair]
rounds = 3
model = "6 s"
output = "355 token"
tool = "1 s"
memory = "2 GiB"
quality = "95 %"
deadline = "24 s"

[service.fast]
billing = "used"
replicas = 12
sessions = 16
gpus = "4 GPU"
price = "6.79 USD/GPU/h"

[host.metal]
count = 1
cpus = "48 CPU"
memory = "384 GB"
cpu_price = "0.000014 USD/CPU/s"
memory_price = "0.0000045 USD/GiB/s"

[policy.rebuilt]
kind = "rebuilt"
prepare = "2 s"
prepare_cpu = "0.1 CPU*s"
"""


@pytest.fixture(scope="session")
def workload_text() -> Callable[..., str]:
    """Return the text with some pieces replaced; a piece that is not there is a mistake of the test."""

    def make(*changes: tuple[str, str]) -> str:
        text = _TEXT
        for old, new in changes:
            assert old in text, old
            text = text.replace(old, new)
        return text

    return make


@pytest.fixture(scope="session")
def make_workload(workload_text: Callable[..., str]) -> Callable[..., Workload]:
    """Return the workload with some pieces of its text replaced."""

    def make(*changes: tuple[str, str]) -> Workload:
        root = parse_document(workload_text(*changes), name="w.toml").root()
        workload = read_workload(root)
        check_deadlines(root, workload)
        return workload

    return make
