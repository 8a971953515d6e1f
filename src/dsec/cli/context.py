"""What every command knows: the global options, and how to run something against the service they name."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

if TYPE_CHECKING:
    from dsec.service.port import SandboxService

T = TypeVar("T")
Opener = Callable[["Options"], AbstractAsyncContextManager["SandboxService"]]


def _open(options: Options) -> AbstractAsyncContextManager[SandboxService]:
    from dsec.cli.connection import open_service

    return open_service(options)


def _open_inside(options: Options) -> AbstractAsyncContextManager[SandboxService]:
    from dsec.cli.connection import open_service_inside

    return open_service_inside(options)


@dataclass(slots=True)
class Options:
    """The global options. `opener` decides what service commands talk to; a program that embeds the command line
    (and the tests) may pass its own."""

    url: str | None = None
    token: str | None = None
    worker_url: str | None = None
    worker_token: str | None = None
    state_dir_option: Path | None = None
    config_file: Path | None = None
    overrides: tuple[str, ...] = ()
    verbose: int = 0
    log_format: str = "console"
    json_errors: bool = False
    opener: Opener = field(default=_open)

    @property
    def state_dir(self) -> Path:
        """The state directory: from the option or environment, else as the settings say."""
        if self.state_dir_option is not None:
            return self.state_dir_option.absolute()
        from dsec.cli.settings import load

        return load(self).state_dir

    def run(self, act: Callable[[SandboxService], Awaitable[T]], *, node_inside: bool = False) -> T:
        """Open the service, run `act` with it, and return its result.

        Args:
            act: what to do.
            node_inside: where no node runs, be it meanwhile instead of starting one in the background.
        """
        opener = _open_inside if node_inside and self.opener is _open else self.opener

        async def opened() -> T:
            async with opener(self) as service:
                return await act(service)

        return self.run_alone(opened)

    def run_alone(self, act: Callable[[], Awaitable[T]], *, fast: bool = False) -> T:
        """Run `act` in an event loop (uvloop's, with `fast`); an error in a task group comes out as itself."""
        import anyio

        from dsec.base.log import LogFormat, configure
        from dsec.cli.failures import sole_error

        level = ("warning", "info", "debug")[min(self.verbose, 2)]
        configure(level=level, format=LogFormat(self.log_format))
        try:
            return anyio.run(act, backend_options={"use_uvloop": fast})
        except BaseExceptionGroup as group:
            raise sole_error(group) from group


pass_options = click.make_pass_decorator(Options, ensure=True)
