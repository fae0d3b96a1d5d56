"""Options of optimisers other than plain SGD, one for each parameter, and `sgdlimits optimisers`, which lists them."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import click

from sgdlimits.cli.levels import check_typed, class_options, typed_options
from sgdlimits.cli.options import Command, Option, echo
from sgdlimits.docstring import describe
from sgdlimits.text import format_table

OPTIMISER_HEADING = "The optimiser"


def optimiser_options(taken: set[str]) -> Iterator[Option]:
    """Yield the option `--optimiser`, and an option for each parameter that an optimiser has but SGD has not."""
    from sgdlimits.algorithm import ALGORITHMS
    from sgdlimits.spec import INHERITED_ARGUMENTS

    of_preset = INHERITED_ARGUMENTS - ({"batch"} - taken)
    for each in class_options(
        "optimiser", OPTIMISER_HEADING, "how weights move: see sgdlimits optimisers", ALGORITHMS, "sgd", taken
    ):
        if str(each.name).removeprefix("optimiser_") not in of_preset:
            yield each


def with_optimiser(problem: Any, given: dict[str, Any]) -> Any:
    """Return the problem trained by the chosen optimiser, with the rates and other options of the preset's SGD."""
    from sgdlimits import spec

    name, typed = given["optimiser"], typed_options("optimiser", given)
    refusal = f"--optimiser must be sgd for this preset; got {name!r}. Leave it out."
    return spec.with_optimiser(problem, spec.Constructor.from_part("optimiser", name), typed, refusal, check_typed)


@click.command(cls=Command, short_help="List the algorithms.")
def optimisers() -> None:
    """List the optimisers that the option --optimiser of sgdlimits run takes, with one line each.

    \b
    Example:
      sgdlimits optimisers
    """
    from sgdlimits.algorithm import ALGORITHMS
    from sgdlimits.spec import Constructor

    options = lambda name: " ".join(f"--{each}" for each in Constructor.from_part("optimiser", name).own_parameters)
    echo(format_table((name, options(name), describe(cls).summary) for name, cls in ALGORITHMS.items()))
    echo("\nFor instance: sgdlimits run committee --d 1000 --optimiser heavy_ball --beta 0.9")


rules = copy.copy(optimisers)
"""The command `optimisers` under its former name."""
rules.name, rules.hidden = "rules", True
