"""`sgdlimits demo`: the package's main job in one command."""

from __future__ import annotations

import click

from sgdlimits.cli.figure import show
from sgdlimits.cli.options import Command, Number


@click.command(cls=Command, short_help="All four levels on one figure, in about a minute.")
@click.option("--out", type=click.Path(), default="sgdlimits-demo", show_default=True, help="the folder for all files")
@click.option("--quick", is_flag=True, help="a small version, in a few seconds: d = 300 and fewer runs")
@click.option("--seed", type=Number(whole=True), default=0, show_default=True, help="of the start and of all runs")
def demo(out: str, quick: bool, seed: int) -> None:
    """Escape from mediocrity at four levels of description, in about a minute.

    Phase retrieval in dimension 3000 from one random start: SGD on the weights, the exact chain of the overlap, its
    diffusion and its limit on one figure, with a table of what each says and costs. A second table has the mean exit
    times from random starts, simulated and by the formulas of the paper. Files of an earlier demo in the folder are
    replaced.

    \b
    Example:
      sgdlimits demo --out figures --seed 1
    """
    show(("demo",), out, quick, seed)
