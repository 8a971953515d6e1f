"""`dsec sandbox create`."""

from __future__ import annotations

from typing import Any

import click

from dsec.cli.context import Options, pass_options
from dsec.cli.output import note, print_json, said_after
from dsec.cli.parameters import (
    duration,
    duration_or_none,
    finite,
    json_option,
    pairs_option,
    size,
    stack_of,
    stack_options,
)
from dsec.model.node import limits_beyond
from dsec.model.sandbox import (
    DiskFullAction,
    ExpiryAction,
    Lifetime,
    Network,
    QosClass,
    Resources,
    SandboxInfo,
    SandboxSpec,
)
from dsec.service.port import DEFAULT_CREATE_TIMEOUT_S, SandboxService

_PATIENCE_S = 5.0
_BUILDS = "still creating: an image that was never used here may be built first, which takes minutes"


@click.command(name="create")
@click.argument("image", default="python")
@click.option("--id", "sandbox_id", help="Id to give it; asking twice with one id makes one sandbox.")
@stack_options
@click.option("--cpu", type=click.FloatRange(min=0.001), help="Cores, such as 0.5.")
@click.option("--memory", type=size, help="Memory, such as 512M.")
@click.option("--swap", type=size, help="Swap on top of memory.")
@click.option("--disk", type=size, help="Bytes that it may write.")
@click.option("--pids", type=click.IntRange(min=1), help="Processes and threads.")
@click.option("--open-files", type=click.IntRange(min=1), help="Open files of every process.")
@click.option("--qos", type=click.Choice([item.value for item in QosClass]), default=QosClass.LATENCY_SENSITIVE.value)
@pairs_option("-e", "--env", help="Variable of every command; may be repeated.")
@click.option("-u", "--user", help="Default user.")
@click.option("-w", "--workdir", help="Default directory.")
@click.option("--hostname", help="Host name; the default is the id.")
@click.option("--allow", "rules", multiple=True, metavar="RULE", help="What it may reach; the default is nothing.")
@pairs_option("-l", "--label", "labels", help="Metadata to list and filter by.")
@click.option("--idle-timeout", type=duration_or_none, help="Time without an operation before it ends, or none.")
@click.option("--max-lifetime", type=duration_or_none, help="Time after which it ends, or none.")
@click.option("--on-expiry", type=click.Choice([item.value for item in ExpiryAction]), help="What ending means.")
@click.option(
    "--on-disk-full",
    type=click.Choice([item.value for item in DiskFullAction]),
    default=DiskFullAction.ERROR.value,
    help="What a full disk means: writes fail, or it is rolled back to its clean state.",
)
@click.option("--seed", type=int, help="Seed for the guest's random numbers.")
@click.option("--timeout", type=duration, default=str(DEFAULT_CREATE_TIMEOUT_S), help="Give up after this time.")
@json_option
@pass_options
def create(options: Options, /, as_json: bool, sandbox_id: str | None, timeout: float, **given: Any) -> None:
    """Create a sandbox from IMAGE (default: python) and print its id."""
    wanted = spec(**given)

    async def act(service: SandboxService) -> tuple[SandboxInfo, list[str]]:
        async with said_after(_PATIENCE_S, _BUILDS):
            info = await service.create(wanted, sandbox_id=sandbox_id, timeout_s=timeout)
        return info, list(limits_beyond(wanted.resources, await service.node()))

    info, warnings = options.run(act)
    for line in warnings:
        note(f"note: {line}")
    if as_json:
        print_json(info)
    else:
        click.echo(info.sandbox_id)


def spec(
    *,
    image: str,
    workspace: str | None,
    toolkits: tuple[str, ...],
    env: tuple[tuple[str, str], ...],
    labels: tuple[tuple[str, str], ...],
    rules: tuple[str, ...],
    qos: str,
    idle_timeout: float | None,
    max_lifetime: float | None,
    on_expiry: str | None,
    on_disk_full: str,
    cpu: float | None,
    memory: int | None,
    swap: int | None,
    disk: int | None,
    pids: int | None,
    open_files: int | None,
    **plain: Any,
) -> SandboxSpec:
    """Return the spec that the options describe; `plain` are the fields that go through as they are."""
    return SandboxSpec(
        image=image,
        layers=stack_of(workspace, toolkits),
        resources=Resources(
            cpu_millis=None if cpu is None else max(1, round(cpu * 1000)),
            memory_bytes=memory,
            swap_bytes=swap,
            disk_bytes=disk,
            pids=pids,
            open_files=open_files,
        ),
        qos=QosClass(qos),
        env=dict(env),
        network=Network(rules=rules),
        lifetime=lifetime(Lifetime(), idle_timeout, max_lifetime, on_expiry),
        metadata=dict(labels),
        on_disk_full=DiskFullAction(on_disk_full),
        **plain,
    )


def lifetime(before: Lifetime, idle: float | None, maximum: float | None, action: str | None) -> Lifetime:
    """Return `before` with what was given (in seconds, infinity for no limit) replaced."""
    return Lifetime(
        idle_timeout_s=before.idle_timeout_s if idle is None else finite(idle),
        maximum_s=before.maximum_s if maximum is None else finite(maximum),
        on_expiry=before.on_expiry if action is None else ExpiryAction(action),
    )
