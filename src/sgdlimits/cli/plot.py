"""`sgdlimits plot FILE...`: figures of datasets."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sgdlimits.cli.options import Command, Number
from sgdlimits.cli.work import check_picture

if TYPE_CHECKING:
    import xarray as xr


@click.command(cls=Command, short_help="Plot datasets.")
@click.argument("files", type=click.Path(), nargs=-1, required=True)
@click.option("--what", type=click.Choice(["both", "risk", "overlaps"]), default="both", show_default=True, help="what to plot")
@click.option("--out", type=click.Path(), help="the figure (.png, .svg, .pdf); by default the first FILE's name with .png")
@click.option(
    "--clock",
    type=click.Choice(["t", "paper", "samples"]),
    default="t",
    show_default=True,
    help="t: samples per dimension; paper: the time of the problem's paper; samples: their number",
)
@click.option("--log", is_flag=True, help="a logarithmic scale for the risk")
@click.option("--excess", type=Number(), help="a floor to subtract from the risk")
@click.option("--force", is_flag=True, help="replace a file that exists")
def plot(files: tuple[str, ...], what: str, out: str | None, clock: str, log: bool, excess: float | None, force: bool) -> None:
    """Plot datasets, several of them on the same axes: a thick line for the mean over runs, thin ones for single runs.

    \b
    Example:
      sgdlimits plot phase_retrieval-*.nc --what risk --log --excess 0.05 --out risk.png
    """
    from sgdlimits.trajectory import load

    path = check_picture(out or f"{Path(files[0]).stem}.png", force, "--out")
    datasets = [load(file) for file in files]
    levels = Counter(dataset.attrs["level"] for dataset in datasets)
    labels = [d.attrs["level"] if levels[d.attrs["level"]] == 1 else Path(f).stem for f, d in zip(files, datasets, strict=True)]
    if len(set(labels)) < len(labels):
        labels = list(files)
    draw(dict(zip(labels, datasets, strict=True)), path, what=what, clock=clock, log=log, excess=excess)
    click.echo(f"Saved {path}.")


def draw(datasets: dict[str, xr.Dataset], path: Path, what: str = "both", **options: Any) -> None:
    """Save a figure of datasets."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    from sgdlimits.plot import PAPER, overlaps, overview, risk

    with plt.rc_context(PAPER):
        if what == "risk":
            risk(datasets, **options)
        elif what == "overlaps":
            overlaps(datasets, clock=options["clock"])
        else:
            overview(datasets, **options)
        figure = plt.gcf()
        figure.suptitle(", ".join(sorted({dataset.attrs["problem_name"] for dataset in datasets.values()})))
        figure.savefig(path)
        plt.close(figure)
