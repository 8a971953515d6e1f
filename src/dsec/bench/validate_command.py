"""`dsec sim validate`: the simulator beside this host."""

from __future__ import annotations

from pathlib import Path

import click

_HELP_OPTIONS = {"help_option_names": ["-h", "--help"], "max_content_width": 120}


@click.command(name="validate", context_settings=_HELP_OPTIONS)
@click.option("--json", "as_json", is_flag=True, help="Print the comparison as one JSON object.")
@click.option("--image", default="python", show_default=True, help="Image of the sandboxes.")
@click.option(
    "--work-dir",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("/var/tmp"),
    show_default=True,
    help="A directory on a disk with room.",
)
@click.pass_context
def sim_validate(ctx: click.Context, as_json: bool, image: str, work_dir: Path) -> None:
    """Run one small scenario live on this host and simulated, and show the differences."""
    from dsec.bench.command import run
    from dsec.bench.registry import Benchmark
    from dsec.bench.table import print_report

    benchmark = Benchmark("validate", "dsec.bench.validate:bench_validate", "")
    report = run(benchmark, ctx.find_root().params, samples=1, image=image, work_dir=work_dir, without_docker=True)
    print_report(report, as_json=as_json)
