"""Options of levels and starts. A level has an option for each parameter of its constructor."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from sgdlimits.cli.options import Option, make_option, number_option, option_type
from sgdlimits.docstring import describe, typed_parameters
from sgdlimits.errors import BadInput
from sgdlimits.text import join_words

if TYPE_CHECKING:
    from sgdlimits.level import Level
    from sgdlimits.spec import Constructor
    from sgdlimits.start import Start

LEVEL_HEADING, START_HEADING = "The level", "The start"
STARTS = {
    "random": "random weights in R^d, as in the preset's paper",
    "orthogonal": "orthonormal students with normal overlaps of standard deviation --spread",
    "fixed": "students of norm 1 with overlap --overlap",
}
"""Description of each start in the help page, by name."""
START_OPTIONS = [
    Option(
        "--start", type=click.Choice(list(STARTS)), default="random", show_default=True, heading=START_HEADING,
        help="; ".join(f"{name}: {words}" for name, words in STARTS.items()),
    ),
    number_option("--spread", START_HEADING, "standard deviation of the overlaps (orthogonal)", whole=False),
    number_option("--overlap", START_HEADING, "overlap of each student with each fixed direction (fixed)", whole=False),
]  # fmt: skip


def available_levels() -> dict[str, type[Level]]:
    """Return the levels, by name, for which every required parameter has an option."""
    from sgdlimits.level import LEVELS

    required = lambda level: [each for each in typed_parameters(level).values() if each.default is each.empty]
    return {name: level for name, level in LEVELS.items() if all(option_type(each.annotation) for each in required(level))}


def level_options(taken: set[str]) -> Iterator[Option]:
    """Yield the option `--level`, and an option for each parameter of the levels.

    `taken` has the names of the preset's options.
    """
    lines = "; ".join(f"{name}: {_as_clause(describe(level).summary)}" for name, level in available_levels().items())
    for each in class_options("level", LEVEL_HEADING, lines, available_levels(), "chain", taken):
        if each.name == "level_d":
            each.help = str(each.help).replace(")", ", and the start random)")
        yield each


def option_name(what: str, name: str, taken: set[str]) -> str:
    """Return the option's name for a parameter, prefixed by `what`, such as "level", if the name is among those `taken`."""
    return f"{what}_{name}" if name in taken else name


def class_options(
    what: str, heading: str, help: str, known: Mapping[str, type], default: str, taken: set[str]
) -> Iterator[Option]:
    """Yield an option that chooses one of several classes by name, and an option for each parameter of these classes.

    Parameters
    ----------
    what : name of the option, such as "level"
    heading, help : heading of the options in the help page, and description of the first one
    known, default : classes by name, and the name of the default
    taken : names of the preset's options
    """
    yield Option(f"--{what}", type=click.Choice(list(known)), default=default, show_default=True, heading=heading, help=help)
    users: dict[str, list[str]] = {}
    for title, cls in known.items():
        for name, each in typed_parameters(cls).items():
            if option_type(each.annotation):
                users.setdefault(name, []).append(title)
    for name, titles in users.items():
        first = typed_parameters(known[titles[0]])[name]
        said = [describe(known[title]).parameters.get(name, "") for title in titles]
        words = [text for text in said if not text.startswith("as for")] or said
        text = max(words, key=len).replace("None", "leaving it out")
        yield make_option(
            f"{what}_{name}",
            first.annotation,
            heading=heading,
            help=f"{text} ({join_words(titles)})",
            default=None if first.default is first.empty else first.default,
            flag=option_name(what, name, taken),
        )


def typed_options(what: str, given: dict[str, Any]) -> dict[str, Any]:
    """Return the parameters of a level or optimiser (`what`) that were typed on the command line, by name."""
    source = click.get_current_context().get_parameter_source
    return {
        name.removeprefix(f"{what}_"): value
        for name, value in given.items()
        if name.startswith(f"{what}_") and source(name) is not ParameterSource.DEFAULT
    }


def make_level(given: dict[str, Any]) -> Level:
    """Build the level from the options; raise `BadInput` if a parameter is missing or belongs to another level."""
    from sgdlimits.spec import Constructor

    level, typed = Constructor.from_part("level", given["level"]), typed_options("level", given)
    if given["start"] == "random" and "d" not in level.parameters:  # then it is the start's
        typed.pop("d", None)
    check_typed(level, typed)
    return level.make(**typed)


def make_start(given: dict[str, Any]) -> Start:
    """Build the start from the options; raise `BadInput` if a required option is missing or belongs to another start."""
    from sgdlimits.spec import Constructor

    start = Constructor.from_part("start", given["start"])
    values = {"d": given["level_d"] if "d" in start.required else None, "spread": given["spread"], "overlap": given["overlap"]}
    typed = {name: value for name, value in values.items() if value is not None}
    check_typed(start, typed)
    return start.make(**typed)


def check_typed(constructor: Constructor, typed: Mapping[str, Any]) -> None:
    """Raise `BadInput` if a typed parameter is not one of the constructor, or if a required parameter is missing."""
    from sgdlimits.spec import EXAMPLES

    what, title = constructor.part, constructor.title
    params = {param.name: param.opts[0] for param in click.get_current_context().command.params}
    flag = lambda name: params.get(f"{what}_{name}", f"--{name}")
    for name in typed:
        if name not in constructor.parameters:
            raise BadInput(f"{flag(name)} is not an option of the {what} {title}. Leave it out, or change --{what}.")
    for name in constructor.required:
        if name not in typed:
            example = f"{flag(name)} {EXAMPLES.get(name, 0.5)}"
            raise BadInput(f"the {what} {title} needs {flag(name)}, which is missing. Give, for instance, {example}.")


def _as_clause(sentence: str) -> str:
    """Return a sentence as a clause, with a lower-case first letter and without the full stop."""
    first = sentence.split()[0]
    return (sentence if first.isupper() else sentence[0].lower() + sentence[1:]).rstrip(".")
