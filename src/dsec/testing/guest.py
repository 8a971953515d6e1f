"""What tests do as a guest: run shell or Python text in a sandbox and hear what it says."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from dsec.model.process import CommandRequest, CommandResult
from dsec.service.port import SandboxService


@dataclass(frozen=True, slots=True)
class Guest:
    """A sandbox from inside.

    Attributes:
        service: by which it is reached.
        sandbox_id: which sandbox.
    """

    service: SandboxService
    sandbox_id: str

    async def run(self, *argv: str, **options: Any) -> CommandResult:
        """Run a program; options are those of `CommandRequest`."""
        return await self.service.run(self.sandbox_id, CommandRequest(argv=argv, **options))

    async def sh(self, script: str, **options: Any) -> CommandResult:
        """Run shell text."""
        return await self.run("sh", "-c", script, **options)

    async def ask(self, source: str, **options: Any) -> Any:
        """Run Python text that prints one JSON value at its end, and return that."""
        result = await self.run("python3", "-c", source, **options)
        assert result.status.exit_code == 0, result.stderr.decode(errors="replace")
        return json.loads(result.stdout.splitlines()[-1])

    async def background(self, script: str, **options: Any) -> str:
        """Start shell text in the background; return its process id."""
        request = CommandRequest(argv=("sh", "-c", script), timeout_s=None, **options)
        return (await self.service.start_process(self.sandbox_id, request)).process_id
