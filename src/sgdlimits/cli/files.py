"""Commands on dataset files: `sgdlimits info`, `rerun`, `phases` and `plot`."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sgdlimits.cli.options import Command, FileType, NumberType, echo
from sgdlimits.cli.work import (
    check_output,
    check_picture,
    count_statuses,
    format_summary,
    json_text,
    save_drawn_figure,
    simulate_and_save,
)
from sgdlimits.text import format_table as columns

if TYPE_CHECKING:
    import xarray as xr


@click.command(cls=Command, short_help="Say what is in a dataset.")
@click.argument("file", type=FileType())
@click.option("--json", "as_json", is_flag=True, help="print it as JSON")
def info(file: str, as_json: bool) -> None:
    """Describe a dataset: its problem, level and start, how its runs ended, and how to make it again.

    \b
    Example:
      sgdlimits info phase_retrieval-chain-d3000-lr0.05-seed0.nc
    """
    from sgdlimits.run import load
    from sgdlimits.run.record import explain_decoding_errors

    dataset = load(file)
    # damaged attributes become `BadInput`
    with explain_decoding_errors():
        echo(
            json_text(_info_as_dict(dataset))
            if as_json
            else columns((name, text) for name, text in _info_lines(file, dataset) if text)
        )


def _info_as_dict(dataset: xr.Dataset) -> dict[str, Any]:
    """Return the attributes of a dataset as a dict, with the numbers of runs by status, the times and the shapes."""
    parts = ("problem", "level_parameters", "start", "save", "observe")
    attributes = {name: json.loads(text) if name in parts else text for name, text in dataset.attrs.items()}
    sizes = {str(name): dict(zip(map(str, each.dims), each.shape, strict=True)) for name, each in dataset.data_vars.items()}
    return {**attributes, "runs": Counter(dataset.status.values.tolist()), "t": dataset.t.values, "variables": sizes}


def _info_lines(file: str, dataset: xr.Dataset) -> list[tuple[str, str]]:
    """Return the lines that `info` prints, as pairs of a name and a description, which may be empty."""
    attributes, times = dataset.attrs, dataset.t.values
    parts = json.loads(attributes["problem"])["fields"]
    rows = {
        "problem": attributes["problem_name"],
        **{f"  {name}": _format_stored(part) for name, part in parts.items() if name != "name" and part is not None},
        "level": _format_stored(json.loads(attributes["level_parameters"])),
        "start": _format_stored(json.loads(attributes["start"])),
        "runs": count_statuses(dataset),
        "times": f"{times.size} from {times[0]:g} to {times[-1]:g}, in samples per dimension",
        "paper time": f"{attributes['rate']:g} t",
        "until": _format_stored(json.loads(attributes["until"]))
        if attributes["until"].startswith("{")
        else attributes["until"],
        "seed": attributes["seed"],
        "variables": ", ".join(f"{name} ({', '.join(map(str, v.dims))})" for name, v in dataset.data_vars.items()),
        "made by": f"sgdlimits {attributes['version']}",
        "again": f"sgdlimits rerun {file} --out again.nc",
        "figure": f"sgdlimits plot {file}",
        "in Python": f"sgdlimits.load({str(file)!r})",
    }
    return [(name, str(text)) for name, text in rows.items()]


def _format_stored(value: Any) -> str:
    """Format an object that a dataset stores as JSON as a Python call, without importing its class.

    >>> _format_stored({"class": "sgdlimits.level.chain:Chain", "fields": {"d": 30}})
    'Chain(d=30)'
    """
    if not isinstance(value, dict):
        return f"{value:g}" if isinstance(value, float) else str(value)
    if "array" in value:
        numbers = str(value["array"]) if isinstance(value["array"], list) else f"{value['array']:.12g}"
        return numbers if len(numbers) <= 60 else f"{numbers[:50]}...]"
    if "tuple" in value:
        return f"[{', '.join(map(_format_stored, value['tuple']))}]"
    if "function" in value:
        return value["function"].rpartition(":")[2]
    fields = [f"{name}={_format_stored(field)}" for name, field in value["fields"].items() if field is not None]
    return f"{value['class'].rpartition(':')[2]}({', '.join(fields)})"


@click.command(cls=Command, short_help="Simulate again what a dataset came from.")
@click.argument("file", type=FileType())
@click.option("--out", type=FileType(), help="the new netCDF file; by default FILE's name with -again")
@click.option("--seed", type=NumberType(whole=True), help="another seed")
@click.option("--runs", type=NumberType(whole=True), help="another number of runs")
@click.option("--t-max", type=NumberType(), help="another end, in samples per dimension")
@click.option("--force", is_flag=True, help="replace a file that exists")
@click.option("--quiet", is_flag=True, help="no progress bar and no table")
def rerun(file: str, out: str | None, force: bool, quiet: bool, **changes: float | None) -> None:
    """Simulate a dataset again, from what its file says about itself.

    Without changes the numbers are the same to the last digit on the same machine; the command says whether they are.

    \b
    Example:
      sgdlimits rerun phase_retrieval-chain-d3000-lr0.05-seed0.nc --seed 1 --out other.nc
    """
    from sgdlimits.run import load, rerun as again

    first = load(file)
    path = check_output(out or Path(file).with_name(f"{Path(file).stem}-again.nc"), force)
    given = {name: value for name, value in changes.items() if value is not None}
    dataset, seconds = simulate_and_save(lambda: again(first, progress=not quiet, **given), path)
    if quiet:
        return
    echo(format_summary(dataset, seconds))
    if not given:
        # attributes contain the version and the time
        same = first.drop_attrs().equals(dataset.drop_attrs())
        echo(f"The numbers are {'those' if same else 'not exactly those'} of {file}.")
    echo(f"Saved {path}.")


@click.command(cls=Command, short_help="Plateau, escape, descent and tail of the runs in a dataset.")
@click.argument("file", type=FileType())
@click.option(
    "--band", type=NumberType(), default=0.02, show_default=True, help="how flat a plateau is, as a share of its risk"
)
@click.option("--fall", type=NumberType(), default=0.5, show_default=True, help="share of its risk that is lost in the escape")
@click.option("--floor", type=NumberType(), help="risk at which learning ends  [default: the problem's floor]")
def phases(file: str, band: float, fall: float, floor: float | None) -> None:
    """Find the phases of the runs in a dataset: norm learning, plateau, escape, descent and tail, with times and risks.

    Times and rates are in samples per dimension, medians over runs, beside theory where there is one. Save some tens of
    times on the plateau.

    \b
    Example:
      sgdlimits run quadratic_network --width 3 --teachers 2 --level ode --d 1000000 --t-max 300 --save 301 --out q.nc
      sgdlimits phases q.nc
    """
    from sgdlimits.papers.quadratic.phases import phases
    from sgdlimits.run import load

    echo(repr(phases(load(file), band=band, fall=fall, floor=floor)))


@click.command(cls=Command, short_help="Plot datasets.")
@click.argument("files", type=FileType(), nargs=-1, required=True)
@click.option("--what", type=click.Choice(["both", "risk", "overlaps"]), default="both", show_default=True, help="what to plot")
@click.option("--out", type=FileType(), help="the figure (.png, .svg, .pdf); by default the first FILE's name with .png")
@click.option(
    "--clock", type=click.Choice(["t", "paper", "samples"]), default="t", show_default=True,
    help="t: samples per dimension; paper: the time of the problem's paper; samples: their number",
)  # fmt: skip
@click.option("--log", is_flag=True, help="a logarithmic scale for the risk")
@click.option("--excess", type=NumberType(), help="a floor to subtract from the risk")
@click.option("--force", is_flag=True, help="replace a file that exists")
def plot(files: tuple[str, ...], what: str, out: str | None, clock: str, log: bool, excess: float | None, force: bool) -> None:
    """Plot one or several datasets on the same axes: thick lines for means over runs, thin ones for single runs.

    \b
    Example:
      sgdlimits plot phase_retrieval-*.nc --what risk --log --excess 0.05 --out risk.png
    """
    from sgdlimits.run import load

    path = check_picture(out or f"{Path(files[0]).stem}.png", force, "--out")
    datasets = [load(file) for file in files]
    levels = Counter(dataset.attrs["level"] for dataset in datasets)
    one = len({dataset.attrs["problem_name"] for dataset in datasets}) == 1
    # label by the level alone where that is unique, else by the file
    alone = [one and levels[dataset.attrs["level"]] == 1 for dataset in datasets]
    labels = [d.attrs["level"] if short else Path(f).stem for f, d, short in zip(files, datasets, alone, strict=True)]
    # files of one name in several folders
    if len(set(labels)) < len(labels):
        labels = list(files)
    draw_datasets(dict(zip(labels, datasets, strict=True)), path, what=what, clock=clock, log=log, excess=excess)
    echo(f"Saved {path}.")


def draw_datasets(datasets: dict[str, xr.Dataset], path: Path, what: str = "both", **options: Any) -> None:
    """Save a figure of the risk, the overlaps or both in datasets."""
    with save_drawn_figure(path):
        from matplotlib.pyplot import suptitle

        from sgdlimits.analysis.plot import overlaps, overview, risk

        if what == "risk":
            risk(datasets, **options)
        elif what == "overlaps":
            overlaps(datasets, clock=options["clock"])
        else:
            overview(datasets, **options)
        names = sorted({dataset.attrs["problem_name"] for dataset in datasets.values()})
        suptitle(", ".join(names).replace("$", r"\$"))  # a name is no formula
