"""Levels and starts as options. The options of a level are the fields of its class."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from sgdlimits.cli.docstring import describe
from sgdlimits.cli.options import Option, among, kind, number, option
from sgdlimits.errors import BadInput

if TYPE_CHECKING:
    from sgdlimits.level import Level
    from sgdlimits.start import Start

LEVEL, START = "The level", "The start"
STARTS = {
    "random": "random weights in R^d, as in the preset's paper",
    "orthogonal": "orthonormal students with normal overlaps of standard deviation --spread",
    "fixed": "students of norm 1 with overlap --overlap",
}
START_OPTIONS = [
    Option(
        "--start", type=click.Choice(list(STARTS)), default="random", show_default=True, heading=START,
        help="; ".join(f"{name}: {words}" for name, words in STARTS.items()),
    ),
    number("--spread", START, "standard deviation of the overlaps (orthogonal)", whole=False),
    number("--overlap", START, "overlap of each student with each fixed direction (fixed)", whole=False),
]  # fmt: skip


def levels() -> dict[str, type[Level]]:
    """The levels whose required parameters can be given on a command line."""
    from sgdlimits.level import LEVELS

    return {
        name: level
        for name, level in LEVELS.items()
        if all(kind(_type(level, field.name)) for field in dataclasses.fields(level) if _required(field))
    }


def level_options(taken: set[str]) -> Iterator[Option]:
    """`--level`, and the parameters of all levels, each once; those whose name is `taken` are called --level-NAME."""
    known = levels()
    lines = "; ".join(f"{name}: {_clause(describe(level).summary)}" for name, level in known.items())
    choice = click.Choice(list(known))
    yield Option("--level", type=choice, default="chain", show_default=True, heading=LEVEL, help=lines)
    users: dict[str, list[str]] = {}
    for name, level in known.items():
        for field in dataclasses.fields(level):
            if kind(_type(level, field.name)):
                users.setdefault(field.name, []).append(name)
    for name, those in users.items():
        first = known[those[0]]
        default = next(field.default for field in dataclasses.fields(first) if field.name == name)
        words = [describe(known[level]).parameters.get(name, "") for level in those]
        text = max(words, key=len).replace("None", "leaving it out")
        yield option(
            f"level_{name}",
            _type(first, name),
            heading=LEVEL,
            help=f"{text} ({among(those)}{', and the start random' if name == 'd' else ''})",
            default=None if default is dataclasses.MISSING else default,
            flag=f"level_{name}" if name in taken else name,
        )


def make_level(given: dict[str, Any]) -> Level:
    """The level with the parameters that were given, or `BadInput` where one is missing or belongs to another level."""
    title, level = given["level"], levels()[given["level"]]
    fields = {field.name: field for field in dataclasses.fields(level)}
    source = click.get_current_context().get_parameter_source
    chosen = {
        name.removeprefix("level_"): value
        for name, value in given.items()
        if name.startswith("level_") and source(name) is not ParameterSource.DEFAULT
    }
    for name in chosen:
        if name not in fields and not (name == "d" and given["start"] == "random"):
            raise BadInput(f"--{name} is not an option of the level {title}. Leave it out, or change --level.")
    for name, field in fields.items():
        if _required(field) and name not in chosen:
            example = f"--{name} 3000" if name == "d" else f"--{name}"
            raise BadInput(f"the level {title} needs --{name}, which is missing. Give it, for instance {example}.")
    return level(**{name: value for name, value in chosen.items() if name in fields})


def make_start(given: dict[str, Any]) -> Start:
    """The start, or `BadInput` where its number is missing or belongs to another start."""
    from sgdlimits.start import FixedInit, OrthogonalInit, RandomInit

    kinds = {
        "random": (RandomInit, "level_d", "--d 3000"),
        "orthogonal": (OrthogonalInit, "spread", "--spread 0.01"),
        "fixed": (FixedInit, "overlap", "--overlap 0.1"),
    }
    name = given["start"]
    start, key, example = kinds[name]
    for other in ("spread", "overlap"):
        if other != key and given[other] is not None:
            raise BadInput(f"--{other} is not an option of the start {name}. Leave it out, or change --start.")
    if given[key] is None:
        flag = example.split()[0]
        raise BadInput(f"the start {name} needs {flag}, which is missing. Give it, for instance {example}.")
    return start(given[key])


def _type(level: type, field: str) -> Any:
    return typing.get_type_hints(level)[field]


def _required(field: dataclasses.Field) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _clause(sentence: str) -> str:
    """A sentence as part of another."""
    first = sentence.split()[0]
    return (sentence if first.isupper() else sentence[0].lower() + sentence[1:]).rstrip(".")
