"""`--optimiser`: algorithms other than plain SGD, with the fields of their classes as options; `sgdlimits optimisers`."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import click

from sgdlimits.cli.levels import choices, chosen, make
from sgdlimits.cli.options import Command, Option, echo
from sgdlimits.docstring import constructor_fields, describe
from sgdlimits.errors import BadInput
from sgdlimits.text import table

HEADING = "The optimiser"


def optimiser_options(taken: set[str]) -> Iterator[Option]:
    """`--optimiser`, and what the algorithms have beyond the options of plain SGD, which are the preset's."""
    from sgdlimits.algorithm import ALGORITHMS, Descent

    common = {field.name for field in constructor_fields(Descent)} - ({"batch"} - taken)
    for each in choices("optimiser", HEADING, "how weights move: see sgdlimits optimisers", ALGORITHMS, "sgd", taken):
        if str(each.name).removeprefix("optimiser_") not in common:
            yield each


def with_optimiser(problem: Any, given: dict[str, Any]) -> Any:
    """The problem with the algorithm that was chosen: it has the rates and the other options of the preset's own SGD."""
    from sgdlimits.algorithm import ALGORITHMS, OnePassSGD
    from sgdlimits.algorithm.sgd import inherit_arguments

    name, typed = given["optimiser"], chosen("optimiser", given)
    if name == "sgd" and not typed:
        return problem
    if not isinstance(getattr(problem, "algorithm", None), OnePassSGD):
        raise BadInput(f"--optimiser must be sgd for this preset; got {name!r}. Leave it out.")
    first, like = inherit_arguments(problem.algorithm, ALGORITHMS[name], typed.pop("batch", None))
    return problem.with_algorithm(make("optimiser", ALGORITHMS, name, typed, *first, **like))


@click.command(cls=Command, short_help="List the algorithms.")
def optimisers() -> None:
    """List the algorithms that --optimiser of sgdlimits run takes, with one line each.

    \b
    Example:
      sgdlimits optimisers
    """
    from sgdlimits.algorithm import ALGORITHMS, Descent

    common = {field.name for field in constructor_fields(Descent)}

    def options(cls: type) -> str:
        own = [field.name for field in constructor_fields(cls) if field.name not in {*common, "base"}]
        return " ".join(f"--{name}" for name in own)

    echo(table((name, options(cls), describe(cls).summary) for name, cls in ALGORITHMS.items()))
    echo("\nFor instance: sgdlimits run committee --d 1000 --optimiser heavy_ball --beta 0.9")


rules = copy.copy(optimisers)
"""The command by its name of before."""
rules.name, rules.hidden = "rules", True
