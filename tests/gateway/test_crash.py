"""A gateway that is killed: what had begun is known, counted as expected, and counted once."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest

from dsec.gateway.building import open_proxy
from dsec.gateway.config_reading import read_config
from dsec.gateway.ledger import read_attempts
from dsec.gateway.ledger_record import Outcome
from dsec.gateway.spending import total_spending

pytestmark = [pytest.mark.anyio, pytest.mark.slow]
CONFIG = """\
[gateway]
port = 0
state_dir = "state"
open = true
[models.m]
[projects.open]
[[backends]]
name = "first"
group = "m"
url = "{url}"
prices = {{ input = "2 USD/Mtoken", output = "10 USD/Mtoken" }}
"""


async def test_kill_9_leaves_every_attempt_that_was_sent_in_the_ledger(
    backends: Any, shapes: Any, tmp_path: Path, until: Any
) -> None:
    file = tmp_path / "gateway.toml"
    file.write_text(CONFIG.format(url=backends[0].url))
    command = [sys.executable, "-m", "dsec", "gateway", "up", "--config", str(file), "--json"]
    async with await anyio.open_process(command, stderr=None) as process:
        try:
            assert process.stdout is not None
            where = json.loads(await process.stdout.receive())
            body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
            async with (
                httpx2.AsyncClient(base_url=where["url"], timeout=60) as http,
                anyio.create_task_group() as group,
            ):
                assert (await http.post("/v1/chat/completions", json=body)).status_code == 200
                backends[0].act = shapes.hanging()

                async def call() -> None:
                    with pytest.raises(httpx2.TransportError):
                        await http.post("/v1/chat/completions", json=body)

                for _ in range(5):
                    group.start_soon(call)
                await until(lambda: len(backends[0].bodies) == 6)
                os.kill(process.pid, signal.SIGKILL)
        finally:
            if process.returncode is None:
                process.kill()
    found = list(read_attempts(tmp_path / "state"))
    assert [attempt.ended.outcome for attempt in found] == [Outcome.ANSWERED, *[Outcome.UNKNOWN] * 5]
    assert all(attempt.ended.cost.estimated and attempt.ended.cost.total > 0 for attempt in found[1:])
    spent = total_spending(found)
    async with open_proxy(read_config(file), tmp_path) as proxy:
        account = proxy.accounts.all()["project", "open"]
        assert (account.calls, account.usd) == (6, pytest.approx(spent.usd))
    size = sum(path.stat().st_size for path in (tmp_path / "state").glob("ledger-*"))
    async with open_proxy(read_config(file), tmp_path):
        pass
    assert sum(path.stat().st_size for path in (tmp_path / "state").glob("ledger-*")) == size  # Ends are written once.
    again = list(read_attempts(tmp_path / "state"))
    assert [attempt.ended.outcome for attempt in again] == [attempt.ended.outcome for attempt in found]
    assert total_spending(again).usd == pytest.approx(spent.usd)
