"""`sgdlimits exit-time`: how long the plateau of phase retrieval lasts, at every level and by every formula."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sgdlimits.cli.options import Command, File, Option, echo, number
from sgdlimits.cli.work import (
    INTERRUPTED_CODE,
    check_apart,
    check_output,
    check_picture,
    json_text,
    picture,
    warnings_in_a_sentence,
)

if TYPE_CHECKING:
    from sgdlimits.papers.mediocrity.exit_table import ExitTable
    from sgdlimits.problem import ProjectionProblem

PROBLEM, RUNS, RESULTS = "The problem", "The runs", "Results"
OPTIONS = [
    number("--width", PROBLEM, "p, the number of units", default=1),
    number("--d", PROBLEM, "dimension", default=3000),
    number(
        "--lr", PROBLEM, "learning rate; 1/12 needs the fewest samples for one unit without noise", default="1/12", whole=False
    ),
    number("--noise", PROBLEM, "variance of the label noise", default=0, whole=False),
    number("--threshold", PROBLEM, "T, the share of the excess risk that is lost at the exit", default=0.5, whole=False),
    number("--runs", RUNS, "runs of chain, SDE and ODE", default=400),
    number("--sgd-runs", RUNS, "runs of SGD on the weights, whose cost is proportional to d", default=0),
    number("--seed", RUNS, "a whole number; the same seed gives the same numbers", default=0),
    Option("--out", type=File(), heading=RESULTS, help="a netCDF file of the table"),
    Option("--plot", type=File(), heading=RESULTS, help="a figure of the share of runs not exited (.png, .svg, .pdf)"),
    Option("--force", is_flag=True, heading=RESULTS, help="replace files that exist"),
    Option("--json", "as_json", is_flag=True, heading=RESULTS, help="print the table as JSON"),
    Option("--quiet", is_flag=True, heading=RESULTS, help="no progress bars"),
]  # fmt: skip


@click.command(
    "exit-time", cls=Command, params=OPTIONS, short_help="Exit times of phase retrieval: all levels and formulas in one table."
)
def exit_time(width, d, lr, noise, threshold, runs, sgd_runs, seed, out, plot, force, as_json, quiet) -> None:
    """How long one-pass SGD stays on the plateau of phase retrieval: every level and every formula in one table.

    SGD, chain, SDE and ODE are simulated from random starts until each run has lost the share T of its excess risk.
    Beside them stand the formulas of "Escaping mediocrity" with their equation numbers, and what they leave out:
    noisy has SGD's own noise near the plateau, ode the full drift, noisy_ode both, backward the whole law of the SDE
    at width 1. Times are t, samples per dimension; samples = t d; the paper's time is lr t / width.

    \b
    Example:
      sgdlimits exit-time --d 3000 --lr 1/12 --threshold 0.1 --plot exits.png
      sgdlimits exit-time --width 5 --lr 5/12 --d 1000 --runs 200
    """
    out = out and check_output(out, force)
    plot = plot and check_picture(plot, force, "--plot")
    check_apart(out, plot)

    from sgdlimits.papers.mediocrity.exit_table import ExitsInterrupted, exit_table
    from sgdlimits.problem.presets import phase_retrieval
    from sgdlimits.run.io import write_netcdf

    problem = phase_retrieval(width=width, lr=lr, noise=noise)
    interrupted = False
    with warnings_in_a_sentence():
        try:
            table = exit_table(problem, d, threshold, runs=runs, seed=seed, sgd_runs=sgd_runs, progress=not quiet)
        except ExitsInterrupted as stopped:
            table, interrupted = stopped.found, True
    if as_json:
        echo(json_text({**table.data.attrs, "rows": table.data.to_dataframe().reset_index().to_dict("records")}))
    else:
        echo(
            f"Phase retrieval, width {width}, d = {d}, lr = {lr:.4g}, noise = {noise:g}, "
            f"threshold {threshold:g}, random starts\n"
        )
        if table.learns:
            echo(f"{table}\n")
        echo(textwrap.fill(table.reading(), width=110, break_on_hyphens=False))
    if out:
        write_netcdf(table.data, out)
    if plot:
        draw(problem, table, plot)
    if out or plot:
        echo(f"\nSaved {' and '.join(str(path) for path in (out, plot) if path)}.", err=as_json)
    if interrupted:
        echo(f"Interrupted. The table has what was simulated: {', '.join(table.exits)}.", err=True)
        sys.exit(INTERRUPTED_CODE)


def draw(problem: ProjectionProblem, table: ExitTable, path: Path) -> None:
    """Save the survival curves of the levels, with the law that theory has for them."""
    import numpy as np

    from sgdlimits.papers.mediocrity.theory import exit_law

    a = table.data.attrs
    with picture(path):
        from sgdlimits.analysis.plot import survival

        ax = survival({f"{name}, {each.sizes['run']} runs": each for name, each in table.exits.items()})
        end = max(float(each.t.max()) for each in table.exits.values())
        if table.learns and np.isfinite(table.data.t.loc["noisy_ode"]):
            law, t = exit_law(problem, a["d"], a["threshold"]), np.linspace(0, end, 500)
            label = "backward equation" if a["width"] == 1 else "noisy start, then ODE"
            ax.plot(t, 1 - law.cdf(t), color="0.55", linewidth=3.5, alpha=0.6, zorder=2, label=label)
        ax.set(xlim=(0, end), title=rf"exit at $T = {a['threshold']:g}$, $p = {a['width']}$, $d = {a['d']}$")
        ax.legend()
