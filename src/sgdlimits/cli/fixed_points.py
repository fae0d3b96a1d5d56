"""`sgdlimits fixed-points PRESET`: the fixed points of a preset's ODE in a table."""

from __future__ import annotations

import sys
from typing import Any

import click

from sgdlimits.cli.options import Option, number
from sgdlimits.cli.run import Presets
from sgdlimits.cli.work import INTERRUPTED_CODE

SEARCH = "The search"
OPTIONS = [
    number("--count", SEARCH, "starts of searches, random weights with parts switched off  [256, fewer for costly drifts]"),
    number("--seed", SEARCH, "a whole number; the same seed gives the same answer", default=0),
    Option("--each", is_flag=True, heading=SEARCH, help="list images under symmetries one by one"),
    Option("--gradient-flow", is_flag=True, heading=SEARCH, help="leave out the effect of the step size"),
    number("--basins", SEARCH, "dimension d of random starts, to count how many go to which fixed point"),
    number("--runs", SEARCH, "how many such starts", default=400),
    number("--seconds", SEARCH, "end after so many, and print what was found so far", whole=False),
]


def search(name: str, problem: Any, given: dict[str, Any]) -> None:
    """Search, and print the table."""
    from sgdlimits.analysis.fixed_points import SearchInterrupted, fixed_points
    from sgdlimits.start import RandomInit

    try:
        table = fixed_points(
            problem,
            count=given["count"],
            symmetries=() if given["each"] else "auto",
            basins=None if given["basins"] is None else RandomInit(given["basins"]),
            runs=given["runs"],
            seed=given["seed"],
            corrector=not given["gradient_flow"],
            seconds=given["seconds"],
        )
    except SearchInterrupted as stopped:
        click.echo(repr(stopped.found))
        sys.exit(INTERRUPTED_CODE)
    click.echo(repr(table))


@click.group(
    "fixed-points", cls=Presets, short_help="Fixed points of a preset's ODE: stability, eigenvalues, copies, basins.",
    work=search, options=lambda taken: OPTIONS, example="--count 256",
)  # fmt: skip
def fixed_points() -> None:
    """Find the fixed points of a preset's ODE, isolated or in manifolds, one row for each up to symmetry.

    \b
    Examples:
      sgdlimits fixed-points phase_retrieval --lr 0.1
      sgdlimits fixed-points binary_mixture --snr inf --ridge 0.1 --basins 250

    Each preset has its own options: see sgdlimits fixed-points PRESET --help.
    """
