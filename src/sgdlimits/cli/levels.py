"""Levels and starts as options. The options of a level are the fields of its class."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from sgdlimits.cli.options import Option, kind, number, option
from sgdlimits.docstring import constructor_fields, describe
from sgdlimits.errors import BadInput
from sgdlimits.text import among

if TYPE_CHECKING:
    from sgdlimits.level import Level
    from sgdlimits.start import Start

LEVEL, START = "The level", "The start"
STARTS = {
    "random": ("level_d", "--d 3000", "random weights in R^d, as in the preset's paper"),
    "orthogonal": ("spread", "--spread 0.01", "orthonormal students with normal overlaps of standard deviation --spread"),
    "fixed": ("overlap", "--overlap 0.1", "students of norm 1 with overlap --overlap"),
}
"""Starts by name: the option that each needs, an example of it, and what the start is."""
START_OPTIONS = [
    Option(
        "--start", type=click.Choice(list(STARTS)), default="random", show_default=True, heading=START,
        help="; ".join(f"{name}: {words}" for name, (_, _, words) in STARTS.items()),
    ),
    number("--spread", START, "standard deviation of the overlaps (orthogonal)", whole=False),
    number("--overlap", START, "overlap of each student with each fixed direction (fixed)", whole=False),
]  # fmt: skip
_types = cache(typing.get_type_hints)


def levels() -> dict[str, type[Level]]:
    """The levels whose required parameters can be given on a command line."""
    from sgdlimits.level import LEVELS

    return {
        name: level
        for name, level in LEVELS.items()
        if all(kind(_types(level)[field.name]) for field in constructor_fields(level) if _required(field))
    }


def level_options(taken: set[str]) -> Iterator[Option]:
    """`--level`, and the parameters of all levels."""
    lines = "; ".join(f"{name}: {_clause(describe(level).summary)}" for name, level in levels().items())
    for each in choices("level", LEVEL, lines, levels(), "chain", taken):
        if each.name == "level_d":
            each.help = str(each.help).replace(")", ", and the start random)")
        yield each


def choices(what: str, heading: str, help: str, known: Mapping[str, type], default: str, taken: set[str]) -> Iterator[Option]:
    """`--WHAT` that chooses a class by name, and the parameters of all classes, each once.

    Those whose name is `taken` are called --WHAT-NAME.
    """
    yield Option(f"--{what}", type=click.Choice(list(known)), default=default, show_default=True, heading=heading, help=help)
    users: dict[str, list[str]] = {}
    for name, each in known.items():
        for field in constructor_fields(each):
            if kind(_types(each)[field.name]):
                users.setdefault(field.name, []).append(name)
    for name, those in users.items():
        first = known[those[0]]
        start = next(field.default for field in constructor_fields(first) if field.name == name)
        said = [describe(known[one]).parameters.get(name, "") for one in those]
        words = [text for text in said if not text.startswith("as for")] or said
        text = max(words, key=len).replace("None", "leaving it out")
        yield option(
            f"{what}_{name}",
            _types(first)[name],
            heading=heading,
            help=f"{text} ({among(those)})",
            default=None if start is dataclasses.MISSING else start,
            flag=f"{what}_{name}" if name in taken else name,
        )


def chosen(what: str, given: dict[str, Any]) -> dict[str, Any]:
    """The parameters of a choice that were typed, by name."""
    source = click.get_current_context().get_parameter_source
    return {
        name.removeprefix(f"{what}_"): value
        for name, value in given.items()
        if name.startswith(f"{what}_") and source(name) is not ParameterSource.DEFAULT
    }


def make_level(given: dict[str, Any]) -> Level:
    """The level with the parameters that were given, or `BadInput` where one is missing or belongs to another level."""
    typed = chosen("level", given)
    if given["start"] == "random" and "d" not in {field.name for field in constructor_fields(levels()[given["level"]])}:
        typed.pop("d", None)
    return make("level", levels(), given["level"], typed)


def make(what: str, known: Mapping[str, type], title: str, typed: dict[str, Any], *first: Any, **more: Any) -> Any:
    """An object of the class that was chosen, or `BadInput` where a parameter is missing or belongs to another."""
    cls = known[title]
    fields = {field.name: field for field in constructor_fields(cls)}
    for name in typed:
        if name not in fields:
            raise BadInput(f"{_flag(what, name)} is not an option of the {what} {title}. Leave it out, or change --{what}.")
    for name, field in list(fields.items())[len(first) :]:
        if _required(field) and name not in {**typed, **more}:
            flag, example = _flag(what, name), 3000 if name == "d" else 3 if name == "times" else 0.5
            raise BadInput(f"the {what} {title} needs {flag}, which is missing. Give it, for instance {flag} {example}.")
    return cls(*first, **{**more, **typed})


def make_start(given: dict[str, Any]) -> Start:
    """The start, or `BadInput` where its number is missing or belongs to another start."""
    from sgdlimits.start import STARTS as CLASSES

    name = given["start"]
    key, example, _ = STARTS[name]
    for other in ("spread", "overlap"):
        if other != key and given[other] is not None:
            raise BadInput(f"--{other} is not an option of the start {name}. Leave it out, or change --start.")
    if given[key] is None:
        flag = example.split()[0]
        raise BadInput(f"the start {name} needs {flag}, which is missing. Give it, for instance {example}.")
    return CLASSES[name](given[key])


def _flag(what: str, name: str) -> str:
    """A parameter as it is typed."""
    params = click.get_current_context().command.params
    return next((param.opts[0] for param in params if param.name == f"{what}_{name}"), f"--{name}")


def _required(field: dataclasses.Field) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _clause(sentence: str) -> str:
    """A sentence as part of another."""
    first = sentence.split()[0]
    return (sentence if first.isupper() else sentence[0].lower() + sentence[1:]).rstrip(".")
