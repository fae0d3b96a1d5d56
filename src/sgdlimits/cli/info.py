"""`sgdlimits info FILE`: what is in a dataset."""

from __future__ import annotations

import json
from typing import Any

import click

from sgdlimits.cli.options import Command
from sgdlimits.text import table


@click.command(cls=Command, short_help="Say what is in a dataset.")
@click.argument("file", type=click.Path())
def info(file: str) -> None:
    """Say what is in a dataset: its problem, level and start, how its runs ended, and how to make it again.

    \b
    Example:
      sgdlimits info phase_retrieval-chain-seed0.nc
    """
    from sgdlimits.cli.work import statuses
    from sgdlimits.trajectory import load

    dataset = load(file)
    attributes, times = dataset.attrs, dataset.t.values
    rows = {
        "problem": attributes["problem_name"],
        **{f"  {name}": text for name, text in _fields(attributes["problem"]).items()},
        "level": _in_words(json.loads(attributes["level_parameters"])),
        "start": _in_words(json.loads(attributes["start"])),
        "runs": statuses(dataset),
        "times": f"{times.size} from {times[0]:g} to {times[-1]:g}, in samples per dimension",
        "paper time": f"{attributes['rate']:g} t",
        "until": _in_words(json.loads(attributes["until"])) if attributes["until"].startswith("{") else attributes["until"],
        "seed": attributes["seed"],
        "variables": ", ".join(f"{name} ({', '.join(map(str, v.dims))})" for name, v in dataset.data_vars.items()),
        "made by": f"sgdlimits {attributes['version']}",
        "again": f"sgdlimits rerun {file} --out again.nc",
        "figure": f"sgdlimits plot {file}",
        "in Python": f"sgdlimits.load({str(file)!r})",
    }
    click.echo(table((name, str(text)) for name, text in rows.items() if text))


def _fields(text: str) -> dict[str, str]:
    """The parts of a problem that is written as JSON."""
    return {
        name: _in_words(value) for name, value in json.loads(text)["fields"].items() if name != "name" and value is not None
    }


def _in_words(value: Any) -> str:
    """A part as JSON, in the manner of a Python call, without looking for the classes behind the names.

    >>> _in_words({"class": "sgdlimits.level.chain:Chain", "fields": {"d": 30}})
    'Chain(d=30)'
    """
    if not isinstance(value, dict):
        return f"{value:g}" if isinstance(value, float) else str(value)
    if "array" in value:
        numbers = str(value["array"]) if isinstance(value["array"], list) else f"{value['array']:.12g}"
        return numbers if len(numbers) <= 60 else f"{numbers[:50]}...]"
    if "tuple" in value:
        return f"[{', '.join(map(_in_words, value['tuple']))}]"
    if "function" in value:
        return value["function"].rpartition(":")[2]
    fields = [f"{name}={_in_words(field)}" for name, field in value["fields"].items() if field is not None]
    return f"{value['class'].rpartition(':')[2]}({', '.join(fields)})"
