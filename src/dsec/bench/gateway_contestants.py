"""What is measured by `gateway`: the null service, our gateway before it, and LiteLLM's proxy before it."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from dsec.base.errors import ExternalCommandError
from dsec.bench.gateway_load import Connection, request

LITELLM_VERSION = "1.80.0"
_START_S = 120.0
_INSTALL_S = 900.0
_STOP_S = 10.0

_OURS = """\
[gateway]
port = 0
open = true
grace = "1s"
[models.m]
[[backends]]
name = "null"
group = "m"
url = "{url}"
"""
_LITELLM = """\
model_list:
  - model_name: m
    litellm_params:
      model: openai/m
      api_base: {url}
      api_key: none
litellm_settings:
  telemetry: false
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contestant:
    """A service that is measured.

    Attributes:
        name: for the report.
        url: with ``/v1``.
        pid: of its process.
    """

    name: str
    url: str
    pid: int


@asynccontextmanager
async def _process(
    command: Sequence[str], environment: Mapping[str, str] | None, log: Path
) -> AsyncIterator[asyncio.subprocess.Process]:
    with log.open("wb") as errors:
        process = await asyncio.create_subprocess_exec(
            *command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=errors, env=environment
        )
        try:
            yield process
        finally:
            if process.returncode is None:
                process.terminate()
                try:
                    await asyncio.wait_for(process.wait(), _STOP_S)
                except TimeoutError:
                    process.kill()
                    await process.wait()


async def _line(process: asyncio.subprocess.Process, command: Sequence[str], log: Path) -> str:
    assert process.stdout is not None
    line = await asyncio.wait_for(process.stdout.readline(), _START_S)
    if not line:
        raise _did_not_start(command, log)
    return line.decode().strip()


def _did_not_start(command: Sequence[str], log: Path) -> ExternalCommandError:
    tail = log.read_text(errors="replace")[-1500:]
    return ExternalCommandError(f"it did not start: {' '.join(command)}", detail=tail)


@asynccontextmanager
async def null_service(directory: Path) -> AsyncIterator[Contestant]:
    """Run the null service."""
    command = [sys.executable, "-m", "dsec.bench.gateway_null"]
    log = directory / "null.log"
    async with _process(command, None, log) as process:
        port = await _line(process, command, log)
        yield Contestant(name="direct", url=f"http://127.0.0.1:{port}/v1", pid=process.pid)


@asynccontextmanager
async def our_gateway(directory: Path, url: str) -> AsyncIterator[Contestant]:
    """Run our gateway before a service, with its ledger and everything."""
    config = directory / "gateway.toml"
    config.write_text(_OURS.format(url=url))
    command = [sys.executable, "-m", "dsec", "gateway", "up", "--config", str(config), "--json"]
    log = directory / "gateway.log"
    async with _process(command, None, log) as process:
        where = json.loads(await _line(process, command, log))
        yield Contestant(name="dsec", url=f"{where['url']}/v1", pid=process.pid)


def litellm_directory() -> Path:
    """Return where LiteLLM's environment is kept between runs."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "dsec" / f"bench-litellm-{LITELLM_VERSION}"


async def install_litellm() -> None:
    """Make an environment of its own for LiteLLM's proxy, unless it is there.

    Raises:
        ExternalCommandError: it cannot be installed.
    """
    directory = litellm_directory()
    if (directory / "complete").exists():
        return
    directory.parent.mkdir(parents=True, exist_ok=True)
    wanted = f"litellm[proxy]=={LITELLM_VERSION}"
    for command in (
        [sys.executable, "-m", "venv", "--clear", str(directory)],
        [str(directory / "bin" / "pip"), "install", "--quiet", "--no-input", wanted],
    ):
        with tempfile.TemporaryDirectory() as scratch:
            log = Path(scratch) / "log"
            async with _process(command, None, log) as process:
                assert process.stdin is not None
                process.stdin.close()
                if await asyncio.wait_for(process.wait(), _INSTALL_S):
                    raise ExternalCommandError(
                        f"status {process.returncode}: {' '.join(command)}", detail=log.read_text()[-1500:]
                    )
    (directory / "complete").touch()


@asynccontextmanager
async def litellm_proxy(directory: Path, url: str) -> AsyncIterator[Contestant]:
    """Run LiteLLM's proxy before a service, in one process as ours is.

    Raises:
        ExternalCommandError: it does not start.
    """
    config = directory / "litellm.yaml"
    config.write_text(_LITELLM.format(url=url))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    program = str(litellm_directory() / "bin" / "litellm")
    command = [program, "--config", str(config), "--host", "127.0.0.1", "--port", str(port), "--num_workers", "1"]
    environment = {
        "PATH": f"{litellm_directory() / 'bin'}:{os.environ.get('PATH', '')}",
        "HOME": str(directory),
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # Its table of prices is not fetched.
        "LITELLM_LOG": "ERROR",
    }
    log = directory / "litellm.log"
    async with _process(["/bin/sh", "-c", 'exec "$@" >&2', "sh", *command], environment, log) as process:
        where = f"http://127.0.0.1:{port}/v1"
        await _answers(process, where, command, log)
        yield Contestant(name="litellm", url=where, pid=process.pid)


async def _answers(process: asyncio.subprocess.Process, url: str, command: Sequence[str], log: Path) -> None:
    """Wait until a service answers a call."""
    loop = asyncio.get_running_loop()
    until_s = loop.time() + _START_S
    while loop.time() < until_s and process.returncode is None:
        try:
            async with Connection(url) as connection:
                await connection.whole(request(url))
        except (OSError, asyncio.IncompleteReadError):
            await asyncio.sleep(0.25)
        else:
            return
    raise _did_not_start(command, log)
