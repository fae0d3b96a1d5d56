"""`sgdlimits rerun FILE`: simulate again what a dataset came from."""

from __future__ import annotations

from pathlib import Path

import click

from sgdlimits.cli.options import Command, Number
from sgdlimits.cli.work import check_output, compute, table


@click.command(cls=Command, short_help="Simulate again what a dataset came from.")
@click.argument("file", type=click.Path())
@click.option("--out", type=click.Path(), help="the new netCDF file; by default FILE's name with -again")
@click.option("--seed", type=Number(whole=True), help="another seed")
@click.option("--runs", type=Number(whole=True), help="another number of runs")
@click.option("--t-max", type=Number(), help="another end, in samples per dimension")
@click.option("--force", is_flag=True, help="replace a file that exists")
@click.option("--quiet", is_flag=True, help="no progress bar and no table")
def rerun(file: str, out: str | None, force: bool, quiet: bool, **changes: float | None) -> None:
    """Simulate again what a dataset came from, from what the file says about itself.

    Without changes the numbers are the same to the last digit on the same machine; the command says whether they are.

    \b
    Example:
      sgdlimits rerun phase_retrieval-chain-seed0.nc --seed 1 --out other.nc
    """
    from sgdlimits.trajectory import load, rerun as again

    first = load(file)
    path = check_output(out or Path(file).with_name(f"{Path(file).stem}-again.nc"), force)
    given = {name: value for name, value in changes.items() if value is not None}
    dataset, seconds = compute(lambda: again(first, progress=not quiet, **given), path)
    if quiet:
        return
    click.echo(table(dataset, seconds))
    if not given:
        same = first.drop_attrs().equals(dataset.drop_attrs())
        click.echo(f"The numbers are {'those' if same else 'not exactly those'} of {file}.")
    click.echo(f"Saved {path}.")
