"""`sgdlimits presets`: the learning problems of the papers."""

from __future__ import annotations

import click

from sgdlimits.cli.options import Command
from sgdlimits.text import table


@click.command(cls=Command, short_help="List the presets.")
def presets() -> None:
    """List the presets, with one line each.

    \b
    Example:
      sgdlimits presets
    """
    from sgdlimits.cli.docstring import describe
    from sgdlimits.problem.presets import PRESETS

    click.echo(table((name, describe(preset).summary) for name, preset in PRESETS.items()))
    click.echo("\nThe options of one: sgdlimits run PRESET --help")
