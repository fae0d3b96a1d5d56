"""`sgdlimits sweep FILE.toml`: a sweep, what it would cost, and how far it is."""

from __future__ import annotations

import dataclasses
import os
import sys
import warnings
from typing import Any

import click

from sgdlimits.cli.options import Command, File, Option, echo
from sgdlimits.cli.work import INTERRUPTED_CODE, check_picture, picture
from sgdlimits.errors import BadInput
from sgdlimits.text import count, table

WHERE, WHAT = "Where it is computed", "What is done"
OPTIONS: list[click.Parameter] = [
    Option("--workers", type=click.IntRange(min=1), heading=WHERE, help="so many processes of this machine"),
    Option("--shard", metavar="I/N", heading=WHERE, help="the I-th of N parts, for job arrays; the first is 1/N"),
    Option("--cluster", metavar="WHERE", heading=WHERE,
           help="through dask: local, slurm, or the address of a scheduler such as tcp://host:8786"),
    Option("--jobs", type=click.IntRange(min=1), default=10, show_default=True, heading=WHERE, help="jobs of --cluster slurm"),
    Option("--job", multiple=True, metavar="KEY=VALUE", heading=WHERE,
           help="a setting of the jobs of --cluster slurm, such as queue=cpu, walltime=08:00:00, memory=4GB or cores=2"),
    Option("--folder", type=File(), heading=WHAT, help="where results are kept, instead of what FILE says"),
    Option("--dry-run", is_flag=True, heading=WHAT, help="say how large it is and how long it takes; with slurm, the script"),
    Option("--status", is_flag=True, heading=WHAT, help="say how far it is, whoever computes it"),
    Option("--retry", is_flag=True, heading=WHAT, help="try units again that failed before"),
    Option("--export", type=File(), heading=WHAT, help="write all results to one file .nc or .zarr afterwards"),
    Option("--plot", type=File(), heading=WHAT, help="a diagram of the first value that is kept over the first two parameters"),
    Option("--force", is_flag=True, heading=WHAT, help="replace a picture that exists"),
    Option("--quiet", is_flag=True, heading=WHAT, help="no progress and no table"),
]  # fmt: skip


@click.command(cls=Command, params=OPTIONS, short_help="Simulate a problem at many points.")
@click.argument("file", type=File())
def sweep(file: str, **given: Any) -> None:
    """Simulate a problem at many points, as FILE says, and lose nothing: the same command goes on after any interruption.

    A FILE can name functions of your own, which are then imported: run only those that you trust.

    \b
    Examples:
      sgdlimits sweep diagram.toml --dry-run
      sgdlimits sweep diagram.toml --workers 4
      sgdlimits sweep diagram.toml --status
      sgdlimits sweep diagram.toml --shard 3/100
      sgdlimits sweep diagram.toml --cluster slurm --job queue=cpu --dry-run
    """
    sys.path.insert(0, os.getcwd())  # functions of one's own are beside the file
    from sgdlimits.run.sweeps import collect, export
    from sgdlimits.run.sweeps.estimate import estimate, status
    from sgdlimits.run.sweeps.job import SweepFailed, SweepStopped, as_shard, compute_sweep
    from sgdlimits.run.sweeps.spec import read_spec

    job = read_spec(file).part(as_shard(given["shard"] and given["shard"].split("/")))
    if given["folder"]:
        job = dataclasses.replace(job, folder=given["folder"])
    if given["status"]:
        return echo(table(status(job).items()))
    engine = _engine(given)
    drawn = given["plot"] and check_picture(given["plot"], given["force"], "--plot")
    if given["dry_run"]:
        script = engine.script(job.folder) if given["cluster"] else ""
        return echo(script or table(estimate(job).items()))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            units = compute_sweep(job, engine, retry=given["retry"], progress=not given["quiet"])
        except SweepStopped as stopped:
            again = " ".join(["sgdlimits", *sys.argv[1:]])
            echo(f"Interrupted. {str(stopped).removeprefix('interrupted; ')}: {again}", err=True)
            sys.exit(INTERRUPTED_CODE)
    for warning in told:
        text = str(warning.message).replace("Give retry=True", "Give --retry")
        echo(f"Warning: {text}", err=True)
    if given["export"]:
        export(job.folder, given["export"])
    found = collect(job.folder, keys=[unit.key for unit in units], runs=job.runs) if units else None
    if drawn and found is not None:
        _draw(found, job.design.names, drawn)
    if not given["quiet"] and found is not None:
        echo(f"{_table(found)}{count(len(units), 'unit')} in {job.folder}. In Python: sgdlimits.collect({job.folder!r})")
    if any(issubclass(warning.category, SweepFailed) for warning in told):
        sys.exit(1)


def _draw(dataset: Any, names: tuple[str, ...], path: Any) -> None:
    values = [name for name, each in dataset.data_vars.items() if each.dtype.kind == "f" and not {"t", "time"} & set(each.dims)]
    numbers = [each for name in names if dataset[each := name.rpartition(".")[2]].dtype.kind in "fiu"]
    if not values or len(numbers) < 2:
        raise BadInput("--plot needs two parameters that are numbers, and a number that is kept. Draw it in Python.")
    with picture(path):
        from sgdlimits.analysis.plot import phase_diagram

        phase_diagram(dataset, numbers[0], numbers[1], str(values[0]))


def _engine(given: dict[str, Any]) -> Any:
    if given["cluster"] and given["workers"] and given["cluster"] != "local":
        raise BadInput("--workers is for this machine and --cluster for others. Leave one of them out.")
    if given["job"] and given["cluster"] != "slurm":
        raise BadInput("--job is a setting of --cluster slurm. Leave it out, or give both.")
    if not given["cluster"]:
        return given["workers"]
    from sgdlimits.run.sweeps.cluster import Dask

    settings = dict(each.partition("=")[::2] for each in given["job"])
    return Dask.of(given["cluster"], workers=given["workers"] or given["jobs"], settings=settings)


def _table(dataset: Any) -> str:
    """The range of what was kept, in a few lines."""
    rows = []
    for name, values in dataset.data_vars.items():
        if values.dtype.kind in "fi" and "t" not in values.dims and "time" not in values.dims:
            mean = values.mean("run") if "run" in values.dims else values
            rows.append((str(name), f"{float(mean.min()):.4g} to {float(mean.max()):.4g} over the points"))
    return table(rows) + "\n" if rows else ""
