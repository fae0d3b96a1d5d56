"""`sgdlimits phases FILE`: the phases of learning in a dataset."""

from __future__ import annotations

import click

from sgdlimits.cli.options import Command, Number


@click.command(cls=Command, short_help="Plateau, escape, descent and tail of the runs in a dataset.")
@click.argument("file", type=click.Path())
@click.option("--band", type=Number(), default=0.02, show_default=True, help="how flat a plateau is, as a share of its risk")
@click.option("--fall", type=Number(), default=0.5, show_default=True, help="share of its risk that is lost in the escape")
@click.option("--floor", type=Number(), help="risk at which learning ends  [default: the problem's floor]")
def phases(file: str, band: float, fall: float, floor: float | None) -> None:
    """Find norm learning, plateau, escape, descent and tail in the runs of a dataset: when, at which risk, how fast.

    Times and rates are in samples per dimension, medians over runs, beside theory where there is one. Save some tens of
    times on the plateau.

    \b
    Example:
      sgdlimits run quadratic_network --width 3 --teachers 2 --level ode --d 1000000 --t-max 300 --save 301 --out q.nc
      sgdlimits phases q.nc
    """
    from sgdlimits.analysis.phases import phases
    from sgdlimits.trajectory import load

    click.echo(repr(phases(load(file), band=band, fall=fall, floor=floor)))
