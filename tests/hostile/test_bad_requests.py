"""Requests that cannot be met: each has its own error, says what to do, and leaves nothing behind."""

from __future__ import annotations

import pytest

from dsec.base.errors import (
    CapabilityMissingError,
    CommandNotFoundError,
    DsecError,
    Fault,
    ImageNotFoundError,
    InvalidRequestError,
    PathNotFoundError,
    PermissionDeniedError,
    UserNotFoundError,
)
from dsec.model.process import CommandRequest, ErrorEvent, SessionRequest
from dsec.model.sandbox import Network, Resources, SandboxSpec
from dsec.sdk.http import HttpService
from dsec.testing.guest import Guest

pytestmark = [pytest.mark.anyio, pytest.mark.root, pytest.mark.slow]


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"image": "no-such-image"}, ImageNotFoundError),
        ({"layers": ("no-such-layer",)}, ImageNotFoundError),
        ({"network": Network.allow("pypi")}, CapabilityMissingError),
        ({"resources": Resources(open_files=1 << 40)}, CapabilityMissingError),
        ({"resources": Resources(memory_bytes=1 << 20)}, InvalidRequestError),
        ({"resources": Resources(memory_bytes=1 << 62)}, InvalidRequestError),
        ({"resources": Resources(disk_bytes=-1)}, InvalidRequestError),
        ({"resources": Resources(pids=0)}, InvalidRequestError),
        ({"hostname": "a" * 300}, InvalidRequestError),
        ({"hostname": "../../etc"}, InvalidRequestError),
        ({"workdir": "relative"}, InvalidRequestError),
        ({"env": {"A=B": "c"}}, InvalidRequestError),
        ({"env": {"A": "nul\0"}}, InvalidRequestError),
        ({"metadata": {"k": "v" * 5000}}, InvalidRequestError),
    ],
)
async def test_spec_that_cannot_be_met_creates_nothing(
    service: HttpService, changes: dict[str, object], error: type[DsecError]
) -> None:
    before = {info.sandbox_id for info in await service.list()}
    fields: dict[str, object] = {"image": "guest", **changes}
    with pytest.raises(error) as raised:
        await service.create(SandboxSpec(**fields))  # type: ignore[arg-type]
    assert raised.value.fault is Fault.CALLER
    assert {info.sandbox_id for info in await service.list()} == before


@pytest.mark.parametrize(
    "request_",
    [CommandRequest(argv=("no-such-program",)), CommandRequest(argv=("true",), cwd="/no/such/directory")],
)
async def test_what_the_runtime_says_of_a_failed_start_is_not_the_commands_output(
    guest: Guest, request_: CommandRequest
) -> None:
    async with guest.service.stream(guest.sandbox_id, request_) as stream:
        (event,) = [event async for event in stream]
    assert isinstance(event, ErrorEvent)
    assert event.code in ("command_not_found", "path_not_found")


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        (CommandRequest(argv=("no-such-program",)), CommandNotFoundError),
        (CommandRequest(argv=("/etc/passwd",)), PermissionDeniedError),
        (CommandRequest(argv=("/home/user",)), PermissionDeniedError),
        (CommandRequest(argv=("true",), cwd="/no/such/place"), PathNotFoundError),
        (CommandRequest(argv=("true",), cwd="/etc/passwd"), DsecError),
        (CommandRequest(argv=("true",), user="nobody-here"), UserNotFoundError),
        (CommandRequest(argv=("true",), user="4294967295"), UserNotFoundError),
        (CommandRequest(argv=("true",), user="70000"), UserNotFoundError),
        (CommandRequest(argv=()), InvalidRequestError),
        (CommandRequest(argv=("a\0b",)), InvalidRequestError),
        (CommandRequest(argv=("true",), timeout_s=-1), InvalidRequestError),
        (CommandRequest(argv=("true",), timeout_s=float("nan")), DsecError),
        (CommandRequest(argv=("true",), output_limit_bytes=1 << 40), InvalidRequestError),
        (CommandRequest(argv=("true",), env={"": "x"}), InvalidRequestError),
    ],
)
async def test_command_that_cannot_start_is_told_by_its_cause(
    service: HttpService, guest: Guest, request_: CommandRequest, error: type[DsecError]
) -> None:
    with pytest.raises(error) as raised:
        await service.run(guest.sandbox_id, request_)
    assert raised.value.fault is Fault.CALLER
    with pytest.raises(DsecError):
        await _run_in_background(service, guest, request_)
    assert (await guest.run("true")).status.exit_code == 0


async def _run_in_background(service: HttpService, guest: Guest, request: CommandRequest) -> None:
    """It is refused at the start, or its end tells the same."""
    process = await service.start_process(guest.sandbox_id, request)
    await service.wait_process(guest.sandbox_id, process.process_id, timeout_s=60)


async def test_image_without_a_shell_runs_programs_and_refuses_sessions(make_guest) -> None:  # type: ignore[no-untyped-def]
    async with make_guest(image="shell-less") as guest:
        assert (await guest.run("cat", "/etc/passwd")).status.exit_code == 0
        with pytest.raises(CommandNotFoundError):
            await guest.sh("true")
        with pytest.raises(CommandNotFoundError):
            await guest.service.open_session(guest.sandbox_id, SessionRequest())


@pytest.mark.parametrize("size", [200_000, 3_000_000])
async def test_huge_arguments_and_environments_run_or_are_refused(guest: Guest, size: int) -> None:
    """The kernel takes 128 KiB for one argument and a quarter of the stack's limit for all."""
    for options in ({"argv": ("true", "x" * size)}, {"argv": ("true",), "env": {"A": "x" * size}}):
        with pytest.raises(DsecError) as raised:
            await guest.service.run(guest.sandbox_id, CommandRequest(**options))  # type: ignore[arg-type]
        assert raised.value.fault is not Fault.PLATFORM, raised.value
    many = ("true", *("x" * 100 for _ in range(5000)))
    assert (await guest.run(*many)).status.exit_code == 0
