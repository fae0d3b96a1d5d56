"""A sweep in a TOML file. All mistakes in it are told at once, each with its key and the remedy.

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
from sgdlimits.run.sweeps.design import Design, check_size, grid, listed, random_points
from sgdlimits.run.sweeps.job import Sweep, mistakes
from sgdlimits.run.sweeps.keep import as_keep
from sgdlimits.run.sweeps.names import called
from sgdlimits.run.sweeps.recipe import END, OPTIMISER, Recipe
from sgdlimits.run.sweeps.refine import Refine, as_refine
from sgdlimits.start import STARTS
from sgdlimits.text import suggest_name


class Table(BaseModel):
    """A table of the file, with no other keys than these."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)


class Even(Table):
    """Evenly spaced values: `{from = 0.01, to = 1, count = 20, scale = "log"}`."""

    low: float = Field(alias="from")
    high: float = Field(alias="to")
    count: int = Field(ge=2)
    scale: Literal["linear", "log"] = "linear"

    def values(self) -> list[float]:
        check_size(self.count)
        if self.scale == "linear":
            return np.linspace(self.low, self.high, self.count).tolist()
        check_number("from", self.low, above=0)
        check_number("to", self.high, above=0)
        return np.geomspace(self.low, self.high, self.count).tolist()


def _axis(given: Any) -> list:
    """The values of a parameter: a list, or evenly spaced ones."""
    if isinstance(given, dict):
        return Even(**given).values()
    if not isinstance(given, list) or not given:
        raise BadInput(f"must be a list of values or {{from = 0.1, to = 1, count = 10}}; got {shorten(given)}")
    return given


def _one_of(known: Any) -> BeforeValidator:
    """A name among those that are known, or of a function in a module."""

    def check(given: Any) -> Any:
        if not isinstance(given, str) or (given not in known and not (known is PRESETS and ":" in given)):
            hint = suggest_name(str(given), known)
            raise BadInput(f"must be one of {', '.join(known)}; got {shorten(given)}. {hint}Give one of them")
        if ":" in given:
            called(given)
        return given

    return BeforeValidator(check)


def _argument(name: str) -> BeforeValidator:
    """Check as `simulate` checks its argument of that name."""
    return BeforeValidator(lambda given: checks_of(simulate)[name](name, given))


def _until(given: Any) -> Any:
    if isinstance(given, dict) and list(given) == ["exits"]:
        return exits(given["exits"])
    if isinstance(given, str) and ":" in given:
        return called(given)
    raise BadInput(f"must be {{exits = 0.5}} or module:function; got {shorten(given)}")


def _save(given: Any) -> Any:
    number = isinstance(given, (int, float)) and not isinstance(given, bool)
    if not number and not (isinstance(given, list) and given and all(isinstance(each, (int, float)) for each in given)):
        raise BadInput(f"must be a number of times or a list of times; got {shorten(given)}")
    saved_times(given, 1.0 if number else max(given))
    return given


class Refinement(Table):
    """`{value = "learnt", rounds = 2, share = 0.25}`."""

    value: str
    rounds: StrictInt = Field(2, ge=1)
    share: float = Field(0.25, gt=0, lt=1)
    log: StrictBool = False


def _refinement(given: Any) -> Any:
    return {"value": given} if isinstance(given, str) else given


class SweepFile(Table):
    """The keys of a file."""

    preset: Annotated[str, _one_of(PRESETS)]
    level: Annotated[str, _one_of(LEVELS)] = "chain"
    start: Annotated[str, _one_of(STARTS)] = "random"
    t_max: Annotated[float | None, _argument("t_max")] = None
    runs: Annotated[int, _argument("runs")] = 1
    seed: Annotated[int, _argument("seed")] = 0
    keep: Annotated[dict[str, Any], BeforeValidator(as_keep)] = {}
    save: Annotated[Any, BeforeValidator(_save)] = None
    until: Annotated[Any, BeforeValidator(_until)] = None
    common: StrictBool = False
    kernel: Annotated[str | None, BeforeValidator(lambda given: given if check_kernel(str(given)) else None)] = None
    folder: str | None = None
    fixed: dict[str, Any] = {}
    grid: dict[str, Annotated[list, BeforeValidator(_axis)]] | None = None
    points: list[dict[str, Any]] | None = None
    random: dict[str, Any] | None = None
    refine: Annotated[Refinement | None, BeforeValidator(_refinement)] = None


DESIGNS = ("grid", "points", "random")


def read_spec(path: str | os.PathLike) -> Sweep:
    """The sweep in a file; `BadInput` with all that is wrong in it. Results go to a folder beside it unless it names one."""
    path = Path(path)
    try:
        if path.exists() and not path.is_file():  # a pipe would be waited for
            raise BadInput(f"{path} is not a plain file. Give the file of a sweep.")
        given = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise BadInput(f"there is no file {path}. Give the file of a sweep.") from None
    except RecursionError:
        raise BadInput(f"{path} has tables inside tables without end. Give the file of a sweep.") from None
    except (OSError, UnicodeDecodeError) as reason:
        raise BadInput(f"{path} cannot be read: {reason}. Give the file of a sweep.") from reason
    except tomllib.TOMLDecodeError as reason:
        raise BadInput(f"{path} is not TOML: {reason}. Correct it there.") from reason
    wrong = list(dict.fromkeys(_wrong(given)))
    if wrong:
        raise BadInput("\n  ".join([f"{path} has {len(wrong)} mistake{'s' * (len(wrong) > 1)}:", *wrong]))
    file = SweepFile(**given)
    folder = path.parent / file.folder if file.folder else path.with_suffix("")
    refine = None if file.refine is None else Refine(**file.refine.model_dump())
    named = {name: getattr(file, name) for name in ("t_max", "seed", "common", "kernel", "save", "until", "keep", "fixed")}
    recipe = Recipe.of(file.preset, file.level, file.start, **named)
    return Sweep.of(recipe, _design(given), file.runs, folder, refine=refine)


def _design(given: dict[str, Any]) -> Design:
    if "grid" in given:
        return grid(**{name: _axis(values) for name, values in given["grid"].items()})
    if "points" in given:
        return listed(given["points"])
    ranges = dict(given["random"])
    return random_points(ranges.pop("count", 0), seed=ranges.pop("seed", 0), **ranges)


def _wrong(given: dict[str, Any]) -> Iterator[str]:
    """All that is wrong, a sentence each, with its key first."""
    bad = set()
    try:
        SweepFile(**given)
    except ValidationError as reason:
        for error in reason.errors():
            keys = [str(key) for key in error["loc"] if not str(key).startswith("function")]
            bad.add(keys[0])
            yield _sentence(keys, error)
    designs = [name for name in DESIGNS if name in given]
    if len(designs) != 1:
        yield f"the points are missing. Add one table of {', '.join(DESIGNS)}." if not designs else (
            f"{' and '.join(designs)} are both there. Leave one of them out.")  # fmt: skip
    if END not in given and not any(END in str(given.get(name, "")) for name in ("fixed", *DESIGNS)):
        yield f"{END} is missing. Add it, in samples per dimension."
    if not {"preset", "level", "start"} & bad:
        yield from _wrong_parameters(given, bad, designs)


def _wrong_parameters(given: dict[str, Any], bad: set[str], designs: list[str]) -> Iterator[str]:
    """What is wrong with parameters, where problem, level and start are known."""
    fixed = given.get("fixed", {}) if isinstance(given.get("fixed", {}), dict) else {}
    kept = None if "keep" in bad else given.get("keep")
    recipe = Recipe.of(
        given["preset"], given.get("level", "chain"), given.get("start", "random"), fixed=fixed, t_max=1.0, keep=kept
    )
    columns: dict[str, dict[str, list]] = {"fixed": {name: [value] for name, value in fixed.items()}}
    for design in designs:
        columns[design] = {}
        if design == "grid" and isinstance(given["grid"], dict):
            columns[design] = {name: _values(values) for name, values in given["grid"].items()}
        if design not in bad:
            try:
                found = _design({design: given[design]})
                columns[design] = {name: found.values(name) for name in found.names}
                if given.get("refine") and not {"refine", "keep"} & bad:
                    as_refine(Refine(**_refinement(given["refine"])), recipe, found)
            except BadInput as reason:
                yield str(reason) if str(reason).startswith("refine") else f"{design}: {reason}"
    known = [name for names in columns.values() for name in names]
    for where, names in columns.items():
        for name, values in names.items():
            for text in mistakes(recipe, {name: values}, columns.get(designs[0] if designs else "", {}).get(OPTIMISER)):
                yield f"{where}.{text}"
            if known.count(name) > 1 and where != "fixed":
                yield f"{where}.{name} is fixed as well. Leave one of them out."
    if not bad:
        for name, part in recipe.parts.items():
            for each in part.required:
                if each not in part.given and each not in {one.rpartition(".")[2] for one in known}:
                    yield f"{each} is missing, which the {name} {part.title} needs. Add it to fixed or to the points."


def _values(given: Any) -> list:
    """The values of an axis, or none where they cannot be read, which is told elsewhere."""
    try:
        return _axis(given)
    except ValueError:
        return []


def _sentence(keys: list[str], error: Any) -> str:
    key, what = ".".join(keys), error["type"]
    if what == "missing":
        return f"{key} is missing. Add it."
    if what == "extra_forbidden":
        table = SweepFile if len(keys) == 1 else Refinement if keys[0] == "refine" else Even
        names = [field.alias or name for name, field in table.model_fields.items()]
        return f"{key} is not a key of a sweep. {suggest_name(keys[-1], names)}The keys are {', '.join(names)}."
    text = str(error["msg"]).removeprefix("Value error, ")
    text, got = text.removeprefix(f"{key} "), shorten(error["input"])
    return f"{key} {text}{'' if '. ' in text or what == 'value_error' else f'; got {got}. Correct it'}".rstrip(".") + "."
