"""Specification of an optimisation in a TOML file. All mistakes in it are reported at once, each with its key and the remedy.

A specification may name functions, `module:function`, which are then imported: like a program, it can run code.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, StrictInt, ValidationError

from sgdlimits.analysis.controls import Budget, Control
from sgdlimits.errors import BadInput, shorten
from sgdlimits.level.condition import exits
from sgdlimits.problem.presets import PRESETS
from sgdlimits.run.sweeps.names import import_function
from sgdlimits.run.sweeps.recipe import FINAL_TIME, OPTIMISER, Recipe
from sgdlimits.run.sweeps.toml import StrictTable, describe_error, load_toml, name_validator, simulate_argument_validator
from sgdlimits.schedule_forms import Steps
from sgdlimits.start import STARTS
from sgdlimits.text import suggest_name


def _parse_objective(given: Any) -> Any:
    """Return the objective that a TOML file gives as `"risk"`, `"exit"`, `{exits = 0.5}` or `module:function`."""
    if given in ("risk", "exit"):
        return given
    if isinstance(given, dict) and list(given) == ["exits"]:
        return exits(given["exits"])
    if isinstance(given, str) and ":" in given:
        return import_function(given)
    raise BadInput(f"must be risk, exit, {{exits = 0.5}} or module:function; got {shorten(given)}")


class ControlTable(StrictTable):
    """Table of a TOML file for one control: number of pieces and bounds, as in `{pieces = 50, low = 0, high = 4}`."""

    pieces: StrictInt = Field(ge=1)
    low: float
    high: float


class ChainTable(StrictTable):
    """Table of a TOML file for the check of the optimum in runs of the exact chain: `{d = 1000, runs = 64}`."""

    d: StrictInt = Field(ge=1)
    runs: StrictInt = Field(64, ge=2)
    seed: StrictInt = Field(0, ge=0)


class OptimiseFile(StrictTable):
    """Keys of the TOML file of an optimisation, with their checks and defaults; they are arguments of `optimise`."""

    preset: Annotated[str, name_validator(PRESETS)]
    start: Annotated[str, name_validator(STARTS)] = "random"
    t_max: Annotated[float, simulate_argument_validator("t_max")]
    objective: Annotated[Any, BeforeValidator(_parse_objective)] = "risk"
    controls: dict[str, ControlTable] = Field(min_length=1)
    budgets: dict[str, float] = Field(default_factory=dict)
    starts: StrictInt = Field(3, ge=1)
    gradients: StrictInt = Field(200, ge=1)
    seed: Annotated[int, simulate_argument_validator("seed")] = 0
    fixed: dict[str, Any] = Field(default_factory=dict)
    check: ChainTable | None = None


NESTED_TABLES: dict[str, type[StrictTable]] = {"controls": ControlTable, "check": ChainTable}
"""Classes of the tables nested in the TOML file, by key."""


@dataclass(frozen=True)
class OptimiseJob:
    """Arguments of `optimise` that a file gives, and those of the check by the chain."""

    arguments: dict[str, Any]
    check: dict[str, int] | None


def read_optimisation(path: str | os.PathLike) -> OptimiseJob:
    """Read the optimisation in a TOML file; raise one `BadInput` with all mistakes in it."""
    path = Path(path)
    given = load_toml(path, "an optimisation")
    if wrong := list(dict.fromkeys(_find_all_mistakes(given))):
        raise BadInput("\n  ".join([f"{path} has {len(wrong)} mistake{'s' * (len(wrong) > 1)}:", *wrong]))
    file = OptimiseFile(**given)
    recipe = _make_recipe(given)
    point = {name: Steps([], [table.high]) for name, table in file.controls.items()}
    arguments = {
        "make": lambda **schedules: recipe.build_simulation(schedules)["problem"],
        "start": recipe.build_simulation(point)["start"],
        "t_max": file.t_max,
        "controls": {name: Control(table.pieces, table.low, table.high) for name, table in file.controls.items()},
        "objective": file.objective,
        "constraints": tuple(Budget(name, total) for name, total in file.budgets.items()),
        **{name: getattr(file, name) for name in ("starts", "gradients", "seed")},
    }
    return OptimiseJob(arguments, None if file.check is None else file.check.model_dump())


def _make_recipe(given: dict[str, Any]) -> Recipe:
    """Return the recipe of the problem and the start, at the level ODE, which has no required parameters."""
    start, fixed = given.get("start", "random"), given.get("fixed", {})
    return Recipe.from_arguments(given["preset"], "ode", start, fixed=fixed, t_max=given.get(FINAL_TIME, 1.0))


def _find_all_mistakes(given: dict[str, Any]) -> Iterator[str]:
    """Yield a sentence for each mistake in the content of a TOML file; the sentence begins with the key."""
    bad = set()
    try:
        OptimiseFile(**given)
    except ValidationError as reason:
        for error in reason.errors():
            # Pydantic adds the names of validators, "function-before[...]", to the path of a key.
            keys = [str(key) for key in error["loc"] if not str(key).startswith("function")]
            bad.add(keys[0])
            table = OptimiseFile if len(keys) == 1 else NESTED_TABLES.get(keys[0], OptimiseFile)
            yield describe_error(keys, error, table, "an optimisation")
    if {"preset", "start", "fixed", "controls"} & bad:
        return
    recipe = _make_recipe(given)
    optimiser = recipe.fixed.get(OPTIMISER)
    for name, value in given.get("fixed", {}).items():
        try:
            recipe.check(name, value, optimiser)
        except BadInput as reason:
            yield f"fixed.{reason}"
        if name in given["controls"]:
            yield f"fixed.{name} is a control as well. Leave it out of one of them."
    for name, table in given["controls"].items():
        spec = recipe.make_spec(optimiser)
        takes = {each for part in (spec.problem, spec.optimiser) if part is not None for each in part.parameters}
        if name not in takes:
            yield f"controls.{name} is not a parameter of the problem. {suggest_name(name, takes)}Leave it out or correct it."
            continue
        try:
            Control(**table)
            # as a schedule, which may be zero where a number may not
            recipe.check(name, Steps([1.0], [table["low"], table["high"]]), optimiser)
        except BadInput as reason:
            yield f"controls.{reason}" if str(reason).startswith(name) else f"controls.{name}: {reason}"
    for name in given.get("budgets", {}):
        if name not in given["controls"]:
            yield f"budgets.{name} is the budget of no control. The controls are {', '.join(given['controls'])}."
    known = {name.rpartition(".")[2] for name in (*given.get("fixed", {}), *given["controls"])}
    for part, constructor in recipe.constructors.items():
        for each in constructor.required:
            if each not in constructor.given and each not in known:
                yield f"{each} is missing, which the {part} {constructor.title} needs. Add it to fixed."
