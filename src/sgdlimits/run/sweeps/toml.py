"""Sweeps specified in a TOML file. All mistakes in the file are reported at once, each with its key and the remedy.

A specification may name functions, `module:function`, which are then imported: like a program, it can run code.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StrictBool, StrictInt, ValidationError

from sgdlimits.domain import checks_of
from sgdlimits.errors import BadInput, check_number, shorten
from sgdlimits.kernel.choose import check_kernel
from sgdlimits.level import LEVELS
from sgdlimits.level.condition import exits
from sgdlimits.problem.presets import PRESETS
from sgdlimits.run.simulate import saved_times, simulate
from sgdlimits.run.sweeps.design import Design, check_size, design_of_points, grid, random_points
from sgdlimits.run.sweeps.job import Sweep, find_mistakes
from sgdlimits.run.sweeps.keep import as_reductions
from sgdlimits.run.sweeps.names import import_function
from sgdlimits.run.sweeps.recipe import FINAL_TIME, OPTIMISER, Recipe
from sgdlimits.run.sweeps.refine import Refine, as_refine
from sgdlimits.start import STARTS
from sgdlimits.text import suggest_name


class StrictTable(BaseModel):
    """Base class of tables of a TOML file, in which unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)


class SpacedValues(StrictTable):
    """Evenly spaced values of a parameter in a TOML file: `{from = 0.01, to = 1, count = 20, scale = "log"}`."""

    low: float = Field(alias="from")
    high: float = Field(alias="to")
    count: int = Field(ge=2)
    scale: Literal["linear", "log"] = "linear"

    def values(self) -> list[float]:
        """Return the values, which are evenly spaced on a linear or logarithmic scale."""
        check_size(self.count)
        if self.scale == "linear":
            return np.linspace(self.low, self.high, self.count).tolist()
        check_number("from", self.low, above=0)
        check_number("to", self.high, above=0)
        return np.geomspace(self.low, self.high, self.count).tolist()


def _parse_axis(given: Any) -> list:
    """Return the values of a parameter from an entry of a TOML file: a list, or a table of evenly spaced values."""
    if isinstance(given, dict):
        return SpacedValues(**given).values()
    if not isinstance(given, list) or not given:
        raise BadInput(f"must be a list of values or {{from = 0.1, to = 1, count = 10}}; got {shorten(given)}")
    return given


def name_validator(known: Any) -> BeforeValidator:
    """Return a pydantic validator of a name in `known`; a preset may also be given as `module:function`."""

    def check(given: Any) -> Any:
        if not isinstance(given, str) or (given not in known and not (known is PRESETS and ":" in given)):
            hint = suggest_name(str(given), known)
            raise BadInput(f"must be one of {', '.join(known)}; got {shorten(given)}. {hint}Give one of them")
        if ":" in given:
            import_function(given)
        return given

    return BeforeValidator(check)


def simulate_argument_validator(name: str) -> BeforeValidator:
    """Return a pydantic validator that checks a value as `simulate` checks its argument of the given name."""
    return BeforeValidator(lambda given: checks_of(simulate)[name](name, given))


def _parse_until(given: Any) -> Any:
    """Return the stop condition given in a TOML file by `{exits = 0.5}` or `module:function`."""
    if isinstance(given, dict) and list(given) == ["exits"]:
        return exits(given["exits"])
    if isinstance(given, str) and ":" in given:
        return import_function(given)
    raise BadInput(f"must be {{exits = 0.5}} or module:function; got {shorten(given)}")


def _check_save(given: Any) -> Any:
    """Check the entry `save` of a TOML file, the number of times to save or a list of times, and return it."""
    number = isinstance(given, (int, float)) and not isinstance(given, bool)
    if not number and not (isinstance(given, list) and given and all(isinstance(each, (int, float)) for each in given)):
        raise BadInput(f"must be the number of times to save, or a list of times; got {shorten(given)}")
    saved_times(given, 1.0 if number else max(given))
    return given


class Refinement(StrictTable):
    """Table of a TOML file for adaptive refinement: `{value = "learnt", rounds = 2, share = 0.25}`.

    Its keys are the options of `Refine`.
    """

    value: str
    rounds: StrictInt = Field(2, ge=1)
    share: float = Field(0.25, gt=0, lt=1)
    log: StrictBool = False


def _as_refinement(given: Any) -> Any:
    """Return the table for adaptive refinement; the name of a variable alone is expanded to such a table."""
    return {"value": given} if isinstance(given, str) else given


class SweepFile(StrictTable):
    """Content of a sweep's TOML file: its keys, which are arguments of `sweep`, with their checks and defaults."""

    preset: Annotated[str, name_validator(PRESETS)]
    level: Annotated[str, name_validator(LEVELS)] = "chain"
    start: Annotated[str, name_validator(STARTS)] = "random"
    t_max: Annotated[float | None, simulate_argument_validator("t_max")] = None
    runs: Annotated[int, simulate_argument_validator("runs")] = 1
    seed: Annotated[int, simulate_argument_validator("seed")] = 0
    keep: Annotated[dict[str, Any], BeforeValidator(as_reductions)] = {}
    save: Annotated[Any, BeforeValidator(_check_save)] = None
    until: Annotated[Any, BeforeValidator(_parse_until)] = None
    common: StrictBool = False
    kernel: Annotated[str | None, BeforeValidator(lambda given: given if check_kernel(str(given)) else None)] = None
    folder: str | None = None
    fixed: dict[str, Any] = {}
    grid: dict[str, Annotated[list, BeforeValidator(_parse_axis)]] | None = None
    points: list[dict[str, Any]] | None = None
    random: dict[str, Any] | None = None
    refine: Annotated[Refinement | None, BeforeValidator(_as_refinement)] = None


DESIGN_TABLES = ("grid", "points", "random")
"""Tables of a TOML file that define the points of a sweep; a file has exactly one of them."""


def read_spec(path: str | os.PathLike) -> Sweep:
    """Return the sweep that a TOML file specifies; raise one `BadInput` with all mistakes in the file.

    Results go to the folder that the file names, relative to its own folder, or to a folder with the name of the file.
    """
    path = Path(path)
    given = load_toml(path, "a sweep")
    wrong = list(dict.fromkeys(_find_all_mistakes(given)))  # several checks may find the same mistake
    if wrong:
        raise BadInput("\n  ".join([f"{path} has {len(wrong)} mistake{'s' * (len(wrong) > 1)}:", *wrong]))
    file = SweepFile(**given)
    folder = path.parent / file.folder if file.folder else path.with_suffix("")
    refine = None if file.refine is None else Refine(**file.refine.model_dump())
    named = {name: getattr(file, name) for name in ("t_max", "seed", "common", "kernel", "save", "until", "keep", "fixed")}
    recipe = Recipe.from_arguments(file.preset, file.level, file.start, **named)
    return Sweep.from_arguments(recipe, _read_design(given), file.runs, folder, refine=refine)


def load_toml(path: Path, what: str) -> dict[str, Any]:
    """Return the content of a TOML file; raise `BadInput` if it cannot be read. `what` is its purpose, such as "a sweep"."""
    try:
        if path.exists() and not path.is_file():  # reading a pipe would wait for ever
            raise BadInput(f"{path} is not a regular file. Give the file of {what}.")
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise BadInput(f"there is no file {path}. Give the file of {what}.") from None
    except RecursionError:
        raise BadInput(f"{path} has tables that are nested too deeply. Give the file of {what}.") from None
    except (OSError, UnicodeDecodeError) as reason:
        raise BadInput(f"{path} cannot be read: {reason}. Give the file of {what}.") from reason
    except tomllib.TOMLDecodeError as reason:
        raise BadInput(f"{path} is not TOML: {reason}. Correct the file there.") from reason


def _read_design(given: dict[str, Any]) -> Design:
    """Return the points of a sweep from the table `grid`, `points` or `random` of its TOML file."""
    if "grid" in given:
        return grid(**{name: _parse_axis(values) for name, values in given["grid"].items()})
    if "points" in given:
        return design_of_points(given["points"])
    ranges = dict(given["random"])
    return random_points(ranges.pop("count", 0), seed=ranges.pop("seed", 0), **ranges)


def _find_all_mistakes(given: dict[str, Any]) -> Iterator[str]:
    """Yield a sentence for each mistake in the content of a TOML file; the sentence begins with the key."""
    bad = set()
    try:
        SweepFile(**given)
    except ValidationError as reason:
        for error in reason.errors():
            # Pydantic adds the names of validators, "function-before[...]", to the path of a key.
            keys = [str(key) for key in error["loc"] if not str(key).startswith("function")]
            bad.add(keys[0])
            yield _describe_error(keys, error)
    designs = [name for name in DESIGN_TABLES if name in given]
    if len(designs) != 1:
        yield f"the points are missing. Add one of the tables {', '.join(DESIGN_TABLES)}." if not designs else (
            f"{' and '.join(designs)} are both given. Leave one of them out.")  # fmt: skip
    if FINAL_TIME not in given and not any(FINAL_TIME in str(given.get(name, "")) for name in ("fixed", *DESIGN_TABLES)):
        yield f"{FINAL_TIME} is missing. Add it, in samples per dimension."
    if not {"preset", "level", "start"} & bad:
        yield from _find_parameter_mistakes(given, bad, designs)


def _find_parameter_mistakes(given: dict[str, Any], bad: set[str], designs: list[str]) -> Iterator[str]:
    """Yield a sentence for each mistake in the parameters of a sweep's TOML file.

    Preset, level and start must be valid; `bad` has the keys of invalid entries, `designs` the tables that define points.
    """
    fixed = given.get("fixed", {}) if isinstance(given.get("fixed", {}), dict) else {}
    kept = None if "keep" in bad else given.get("keep")
    # A trial recipe without points, whose parameters are checked one by one below.
    recipe = Recipe.from_arguments(
        given["preset"], given.get("level", "chain"), given.get("start", "random"), fixed=fixed, t_max=1.0, keep=kept
    )
    columns: dict[str, dict[str, list]] = {"fixed": {name: [value] for name, value in fixed.items()}}
    for design in designs:
        columns[design] = {}
        if design == "grid" and isinstance(given["grid"], dict):
            columns[design] = {name: _axis_or_empty(values) for name, values in given["grid"].items()}
        if design not in bad:
            try:
                found = _read_design({design: given[design]})
                columns[design] = {name: found.values(name) for name in found.parameter_names}
                if given.get("refine") and not {"refine", "keep"} & bad:
                    as_refine(Refine(**_as_refinement(given["refine"])), recipe, found)
            except BadInput as reason:
                yield str(reason) if str(reason).startswith("refine") else f"{design}: {reason}"
    known = [name for names in columns.values() for name in names]
    for where, names in columns.items():
        for name, values in names.items():
            for text in find_mistakes(recipe, {name: values}, columns.get(designs[0] if designs else "", {}).get(OPTIMISER)):
                yield f"{where}.{text}"
            if known.count(name) > 1 and where != "fixed":
                yield f"{where}.{name} is fixed as well. Leave it out of one of them."
    if not bad:
        for name, part in recipe.constructors.items():
            for each in part.required:
                if each not in part.given and each not in {one.rpartition(".")[2] for one in known}:
                    yield f"{each} is missing, which the {name} {part.title} needs. Add it to fixed or to the points."


def _axis_or_empty(given: Any) -> list:
    """Return the values of a parameter from a TOML file, or an empty list if they are invalid (reported elsewhere)."""
    try:
        return _parse_axis(given)
    except ValueError:
        return []


def _describe_error(keys: list[str], error: Any) -> str:
    """Return a sentence for an error of pydantic at a nested key."""
    table = SweepFile if len(keys) == 1 else Refinement if keys[0] == "refine" else SpacedValues
    return describe_error(keys, error, table, "a sweep")


def describe_error(keys: list[str], error: Any, table: type[BaseModel], file: str) -> str:
    """Return a sentence for an error of pydantic at a nested key of `table`; `file` is the file's purpose, as "a sweep"."""
    key = ".".join(keys)
    what = error["type"]
    if what == "missing":
        return f"{key} is missing. Add it."
    if what == "extra_forbidden":
        names = [field.alias or name for name, field in table.model_fields.items()]
        return f"{key} is not a key of {file}. {suggest_name(keys[-1], names)}The keys are {', '.join(names)}."
    text = str(error["msg"]).removeprefix("Value error, ")
    text, got = text.removeprefix(f"{key} "), shorten(error["input"])
    return f"{key} {text}{'' if '. ' in text or what == 'value_error' else f'; got {got}. Correct it'}".rstrip(".") + "."
