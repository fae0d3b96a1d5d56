"""`sgdlimits latex PRESET`: the ODE of a preset as LaTeX."""

from __future__ import annotations

from typing import Any

import click

from sgdlimits.cli.rules import rule_options, with_rule
from sgdlimits.cli.run import Presets


def write(name: str, problem: Any, given: dict[str, Any]) -> None:
    """Print the equations."""
    from sgdlimits.problem import latex

    click.echo(latex(with_rule(problem, given)))


@click.group(cls=Presets, short_help="The ODE of a preset as LaTeX.", work=write, options=rule_options, example="--width 2")
def latex() -> None:
    """Print the ODE of a preset as LaTeX: the equations, what their letters stand for, and the numbers behind them.

    \b
    Examples:
      sgdlimits latex phase_retrieval --lr 0.1 --noise 0.2
      sgdlimits latex committee --width 2 --teachers 2 --activation erf

    Each preset has its own options: see sgdlimits latex PRESET --help.
    """
