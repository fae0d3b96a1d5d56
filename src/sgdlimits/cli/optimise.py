"""`sgdlimits optimise FILE.toml`: the schedules that minimise an objective."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import click

from sgdlimits.cli.options import Command, FileType, echo
from sgdlimits.cli.work import INTERRUPTED_CODE, check_output, json_text


@click.command(cls=Command, short_help="Find optimal schedules of a learning rate and other numbers.")
@click.argument("file", type=FileType())
@click.option("--out", type=FileType(), help="a .json file of the result, or a .nc file of the ODE with the optimal schedules")
@click.option("--force", is_flag=True, help="replace a file that exists")
@click.option("--quiet", is_flag=True, help="no progress bar")
def optimise(file: str, out: str | None, force: bool, quiet: bool) -> None:
    """Find the schedules that minimise the risk, the time to leave a plateau, or an objective of your own, as FILE says.

    Each control is piecewise constant. The result has the best constants as baseline and, with a table [check] in FILE,
    the gain in runs of the exact chain. Ctrl-C keeps the best schedules so far. A FILE can name functions of your own,
    which are then imported: run only those that you trust.

    \b
    A FILE:
      preset = "committee"
      start = "fixed"
      t_max = 60
      objective = "risk"          # or "exit", {exits = 0.9}, "module:function"
      fixed = {width = 2, teachers = 2, noise = 0.1, overlap = [[0.3, 0.1], [0.1, 0.2]]}
      controls.lr = {pieces = 50, low = 0, high = 4}
      budgets.lr = 20             # largest integral; may be left out
      check = {d = 1000, runs = 64}

    \b
    Examples:
      sgdlimits optimise rate.toml
      sgdlimits optimise rate.toml --out rate.json
    """
    sys.path.insert(0, os.getcwd())  # FILE may name functions in a module of the current folder
    from sgdlimits.run.sweeps.optimise_toml import read_optimisation

    job = read_optimisation(file)
    path = check_output(out, force) if out else None
    if path and path.suffix not in (".json", ".nc"):
        from sgdlimits.errors import BadInput

        raise BadInput(f"--out must end in .json or .nc; got {path}. Give such a name.")
    from sgdlimits.analysis.optimise import optimise as search

    found = search(**job.arguments, progress=not quiet)
    if job.check and found.complete:
        found.check(**job.check, progress=not quiet)
    echo(repr(found))
    if path:
        save_optimum(found, path)
        echo(f"Saved {path}.")
    if found.interrupted:
        echo("Interrupted. These are the best schedules so far.", err=True)
        sys.exit(INTERRUPTED_CODE)


def save_optimum(found: Any, path: Path) -> None:
    """Save an optimum: its numbers in a .json file, or the dataset of its ODE in a .nc file."""
    if path.suffix == ".nc":
        from sgdlimits.run import save

        save(found.dataset, path)
        return
    from sgdlimits.files import atomic_replacement

    names = (
        "value",
        "baseline",
        "gain",
        "constants",
        "values",
        "certificate",
        "certificate_of_constants",
        "error",
        "evaluations",
        "complete",
    )
    record = {name: getattr(found, name) for name in names}
    record["controls"] = {name: {"times": each.times, "values": each.values} for name, each in found.controls.items()}
    check = ("d", "runs", "gain", "standard_error", "interval", "predicted", "confirmed")
    record["checks"] = [{name: getattr(each, name) for name in check} for each in found.checks]
    with atomic_replacement(path) as partial:
        Path(partial).write_text(json_text(record), encoding="utf-8")
