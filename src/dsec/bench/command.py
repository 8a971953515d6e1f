"""`dsec bench`: measure this host, beside what else is on it."""

from __future__ import annotations

import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dsec.bench.registry import BENCHMARKS, Benchmark

if TYPE_CHECKING:
    from dsec.bench.progress import Progress
    from dsec.bench.report import Report

_HELP_OPTIONS = {"help_option_names": ["-h", "--help"], "max_content_width": 120}


def _list(ctx: click.Context, option: click.Parameter, wanted: bool) -> None:
    del option
    if wanted and not ctx.resilient_parsing:
        width = max(len(benchmark.name) for benchmark in BENCHMARKS)
        for benchmark in BENCHMARKS:
            click.echo(f"{benchmark.name:<{width}}  {benchmark.help}")
        ctx.exit()


@click.group(name="bench", context_settings=_HELP_OPTIONS)
@click.option(
    "--list", is_flag=True, expose_value=False, is_eager=True, callback=_list, help="Name every benchmark and exit."
)
def bench() -> None:
    """Measure this host, beside what else is on it.

    A benchmark works in a directory of its own, with nodes of its own, and takes everything away at the end.
    """


def _command(benchmark: Benchmark) -> click.Command:
    @click.pass_context
    def body(ctx: click.Context, /, as_json: bool, plot: Path | None = None, **wanted: Any) -> None:
        from dsec.bench.table import print_report

        root = ctx.find_root().params
        report = run_pure(benchmark, **wanted) if benchmark.pure else run(benchmark, root, **wanted)
        print_report(report, as_json=as_json)
        if plot is not None:
            benchmark.draw(report, plot)

    return click.Command(
        benchmark.name, callback=body, params=_parameters(benchmark), help=benchmark.help, short_help=benchmark.help
    )


def _parameters(benchmark: Benchmark) -> list[click.Parameter]:
    parameters: list[click.Parameter] = [
        click.Option(["--json", "as_json"], is_flag=True, help="Print the result as one JSON object."),
        click.Option(
            ["--samples"],
            type=click.IntRange(min=1),
            default=benchmark.samples,
            show_default=True,
            help="How much is measured; slow parts take a fraction of it.",
        ),
    ]
    if not benchmark.pure:
        parameters += _sandbox_parameters()
    if benchmark.counts:
        count = click.IntRange(min=1)
        parameters.append(click.Option(["--count"], type=count, help=f"How many {benchmark.counts}.  [all]"))
    if benchmark.installs:
        parameters.append(
            click.Option(
                ["--install-reference"],
                is_flag=True,
                help=f"Install {benchmark.installs}, in an environment of its own, if it is not there.",
            )
        )
    if benchmark.sizes:
        parameters.append(
            click.Option(
                ["--size", "size"], default=benchmark.size, show_default=True, help="The largest amount of data."
            )
        )
    if benchmark.picture or benchmark.draws:
        directory = click.Path(path_type=Path, file_okay=False)
        parameters.append(click.Option(["--plot"], type=directory, metavar="DIR", help="Draw the picture there."))
    return parameters


def _sandbox_parameters() -> list[click.Parameter]:
    return [
        click.Option(["--image"], default="python", show_default=True, help="Image of the sandboxes."),
        click.Option(
            ["--work-dir"],
            type=click.Path(path_type=Path, file_okay=False),
            default=Path("/var/tmp"),
            show_default=True,
            help="A directory on a disk with room; everything stands below it.",
        ),
        click.Option(["--without-docker"], is_flag=True, help="Leave Docker Engine out."),
    ]


def run_pure(
    benchmark: Benchmark, *, samples: int, count: int | None = None, install_reference: bool = False
) -> Report:
    """Run a benchmark that needs no sandboxes."""
    import anyio

    from dsec.bench.context import BenchOptions, PureContext
    from dsec.bench.hardware import describe_host
    from dsec.bench.progress import Progress

    progress = Progress()
    _warn_of_disturbance(progress)
    options = BenchOptions(samples=samples, count=count, install_reference=install_reference)

    async def measure() -> Report:
        return await benchmark.load()(PureContext(options=options, progress=progress, host=describe_host()))

    return _unwrapped(lambda: anyio.run(measure))


def _warn_of_disturbance(progress: Progress) -> None:
    from dsec.bench.hardware import disturbance

    if (warning := disturbance()) is not None:
        progress.say(f"warning: {warning}")


def run(
    benchmark: Benchmark,
    root: dict[str, Any],
    *,
    samples: int,
    image: str,
    work_dir: Path,
    without_docker: bool,
    count: int | None = None,
    size: str = "1GiB",
) -> Report:
    """Run a benchmark in a workplace of its own; `root` holds the options of the whole command line."""
    import anyio

    from dsec.base.log import configure
    from dsec.base.units import parse_size
    from dsec.bench.context import BenchContext, BenchOptions
    from dsec.bench.hardware import describe_host
    from dsec.bench.progress import Progress
    from dsec.bench.workplace import Workplace
    from dsec.node.settings import default_state_dir

    # Before any node of ours speaks: unasked it would log to stdout, which is the report's.
    configure(level="error")
    progress = Progress()
    _warn_of_disturbance(progress)
    options = BenchOptions(samples=samples, count=count, size_bytes=parse_size(size), without_docker=without_docker)
    images = Path(root.get("state_dir") or default_state_dir()) / "images"
    overrides = dict(_setting(text) for text in root.get("overrides") or ())

    async def measure() -> Report:
        async with Workplace.open(work_dir, images, image, overrides, progress) as workplace:
            context = BenchContext(options=options, workplace=workplace, progress=progress, host=describe_host())
            return await benchmark.load()(context)

    return _unwrapped(lambda: anyio.run(_in_order, measure))


async def _in_order(measure: Callable[[], Awaitable[Report]]) -> Report:
    """Measure; when asked to end, take away all that was made: sandboxes would live on, and their volume stay mounted.
    Asked again, end at once.

    Not by cancelling the task itself, as an interrupt does: what it does in threads would go on beside the clearing.

    Raises:
        KeyboardInterrupt: it was asked to end, and did.
    """
    import anyio

    report: Report | None = None
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    async with anyio.create_task_group() as group:

        async def cancel_when_asked() -> None:
            # What a shell in the background has it ignore stays ignored.
            heard = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
            with anyio.open_signal_receiver(*heard) as signals:
                async for _ in signals:
                    break
            group.cancel_scope.cancel()

        group.start_soon(cancel_when_asked)
        report = await measure()
        group.cancel_scope.cancel()
    if report is None:
        raise KeyboardInterrupt
    return report


def _setting(text: str) -> tuple[str, str]:
    name, _, value = text.partition("=")
    return name, value


def _unwrapped(act: Callable[[], Report]) -> Report:
    """Call, and let an error that task groups wrapped come out as itself."""
    try:
        return act()
    except BaseExceptionGroup as group:
        error: BaseException = group
        while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
            error = error.exceptions[0]
        raise error from group


for _benchmark in BENCHMARKS:
    bench.add_command(_command(_benchmark))
