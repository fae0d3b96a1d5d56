"""`sgdlimits presets`: the learning problems of the papers."""

from __future__ import annotations

import click

from sgdlimits.cli.options import Command


@click.command(cls=Command, short_help="List the presets.")
def presets() -> None:
    """List the presets, with one line each.

    \b
    Example:
      sgdlimits presets
    """
    from sgdlimits.cli.docstring import describe
    from sgdlimits.problem.presets import PRESETS

    width = max(map(len, PRESETS))
    for name, preset in PRESETS.items():
        click.echo(f"{name:<{width}}  {describe(preset).summary}")
    click.echo("\nThe options of one: sgdlimits run PRESET --help")
