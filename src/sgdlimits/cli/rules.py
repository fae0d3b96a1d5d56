"""`--rule`: other algorithms than plain SGD, their options made from the fields of their classes; `sgdlimits rules`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import click

from sgdlimits.cli.levels import choices, chosen, make
from sgdlimits.cli.options import Command, Option, echo
from sgdlimits.docstring import describe
from sgdlimits.errors import BadInput
from sgdlimits.text import table

RULE = "The algorithm"


def rule_options(taken: set[str]) -> Iterator[Option]:
    """`--rule`, and what the algorithms have beyond the options of plain SGD, which are the preset's."""
    from sgdlimits.algorithm import ALGORITHMS, Descent

    common = {field.name for field in dataclasses.fields(Descent)} - ({"batch"} - taken)
    for each in choices("rule", RULE, "how weights move: see sgdlimits rules", ALGORITHMS, "sgd", taken):
        if str(each.name).removeprefix("rule_") not in common:
            yield each


def with_rule(problem: Any, given: dict[str, Any]) -> Any:
    """The problem with the algorithm that was chosen: it has the rates and the other options of the preset's own SGD."""
    from sgdlimits.algorithm import ALGORITHMS, OnePassSGD
    from sgdlimits.algorithm.sgd import in_place_of

    name, typed = given["rule"], chosen("rule", given)
    if name == "sgd" and not typed:
        return problem
    if not isinstance(getattr(problem, "algorithm", None), OnePassSGD):
        raise BadInput(f"--rule must be sgd for this preset; got {name!r}. Leave it out.")
    first, like = in_place_of(problem.algorithm, ALGORITHMS[name], typed.pop("batch", None))
    return problem.with_algorithm(make("rule", ALGORITHMS, name, typed, *first, **like))


@click.command(cls=Command, short_help="List the algorithms.")
def rules() -> None:
    """List the algorithms that --rule of sgdlimits run takes, with one line each.

    \b
    Example:
      sgdlimits rules
    """
    from sgdlimits.algorithm import ALGORITHMS, Descent

    common = {field.name for field in dataclasses.fields(Descent)}

    def options(cls: type) -> str:
        own = [field.name for field in dataclasses.fields(cls) if field.name not in {*common, "base"}]
        return " ".join(f"--{name}" for name in own)

    echo(table((name, options(cls), describe(cls).summary) for name, cls in ALGORITHMS.items()))
    echo("\nFor instance: sgdlimits run committee --d 1000 --rule heavy_ball --beta 0.9")
