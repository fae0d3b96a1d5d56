"""Recipe of a sweep: the simulation at each of its points, whose parameters go to the constructors of a `Spec` by name."""

from __future__ import annotations

import dataclasses
import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import equinox as eqx
import numpy as np

from sgdlimits.algorithm import ALGORITHMS
from sgdlimits.checks import level as check_level, positive
from sgdlimits.docstring import constructor_fields
from sgdlimits.errors import BadInput, check_choice, shorten
from sgdlimits.kernel.choose import check_kernel
from sgdlimits.level.condition import as_condition
from sgdlimits.part import is_schedule
from sgdlimits.problem.base import Problem
from sgdlimits.problem.presets import PRESETS
from sgdlimits.renamed import present_parameter_name
from sgdlimits.run.record import from_json, to_json
from sgdlimits.run.simulate import saved_times
from sgdlimits.run.sweeps.design import Point, to_plain
from sgdlimits.run.sweeps.keep import as_reductions, stop_condition_of
from sgdlimits.run.sweeps.names import function_name, import_function, is_importable
from sgdlimits.spec import Constructor, Spec
from sgdlimits.start import as_start

OPTIMISER, FINAL_TIME = "optimiser", "t_max"
"""Parameters of a sweep beside those of constructors: the optimiser's name, and the final time."""


@dataclass(frozen=True)
class Recipe:
    """Everything that defines a sweep except its points: problem, level, start and options, as strings and numbers.

    Other processes can read it.

    Parameters
    ----------
    build : the name of a preset, or `module:function` for a function that returns a problem
    level, start : a name, or an object as JSON, whose parameters the points may replace
    fixed : values of parameters that all points share
    t_max, save, until : as for `simulate`; `until` as JSON or as module:function
    keep : names of reductions with their options; empty keeps whole datasets
    seed : an integer; the seed of a point follows from it
    common : whether all points have the same random numbers
    kernel : as for `simulate`
    """

    build: str
    level: str
    start: str
    t_max: float | None
    fixed: Mapping[str, Any] = field(default_factory=dict)
    save: Any = None
    until: str | None = None
    keep: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    seed: int = 0
    common: bool = False
    kernel: str | None = None

    @classmethod
    def from_arguments(
        cls, preset: Any, level: Any, start: Any, *, until: Any = None, keep: Any = None, save: Any = None, **more: Any
    ):
        """Return the recipe for the arguments of `sweep`; preset, level and start are names or objects."""
        fixed = {present_parameter_name(name): to_plain(value) for name, value in (more.pop("fixed", None) or {}).items()}
        kept = as_reductions(keep)
        if more.get("kernel") is not None:
            check_kernel(more["kernel"])
        if save is not None:
            saved_times(save, more.get(FINAL_TIME) or np.max(save))
        condition = as_condition(until) or stop_condition_of(kept)
        fn = getattr(condition, "fn", None)
        stop = function_name(fn) if fn else to_json(condition) if condition is not None else None
        times = save if save is not None else 2 if kept else None
        if not isinstance(preset, str) and not callable(preset):
            raise BadInput(f"preset must be a name or a function that returns a problem; got {shorten(preset)}. Give one.")
        build = preset if isinstance(preset, str) else function_name(preset)
        level = level if isinstance(level, str) else to_json(check_level("level", level))
        start = start if isinstance(start, str) else to_json(as_start(start))
        return cls(build, level, start, fixed=fixed, until=stop, keep=kept, save=to_plain(times), **more)

    def to_json(self) -> str:
        """Return the recipe as a JSON string for other processes; raise `BadInput` if they cannot import its functions."""
        for name in (self.build, self.until or "", *self.keep):
            if ":" in name and not name.startswith("{") and not is_importable(name):
                raise BadInput(
                    f"{name} is known to this process only, and other processes cannot import it. "
                    "Put the function into a module of its own, or leave out engine."
                )
        values = {each.name: getattr(self, each.name) for each in dataclasses.fields(self)}
        return json.dumps({**values, "fixed": {name: encode_value(value) for name, value in self.fixed.items()}})

    @classmethod
    def from_json(cls, text: str) -> Recipe:
        """Return the recipe of a sweep from the JSON string that `to_json` returned."""
        values = json.loads(text)
        return cls(**{**values, "fixed": {name: decode_value(value) for name, value in values["fixed"].items()}})

    @cached_property
    def builder(self) -> Callable[..., Problem]:
        """The function that builds the problem: a preset, or a function of the user."""
        if ":" in self.build:
            return import_function(self.build)
        if self.build not in PRESETS:
            raise BadInput(f"there is no preset {self.build!r}. Give one of {', '.join(PRESETS)}, or module:function.")
        return PRESETS[self.build]

    @cached_property
    def constructors(self) -> dict[str, Constructor]:
        """Constructors of the problem, the level and the start, with the arguments that are given already."""
        read = lambda text: from_json(text) if text.startswith("{") else text
        others = {
            part: Constructor.from_part(part, read(text)) for part, text in (("level", self.level), ("start", self.start))
        }
        return {"problem": Constructor("problem", self.builder, self.build), **others}

    def make_spec(self, optimiser: Any = None) -> Spec:
        """Return the constructors of the problem, level, start and optimiser; no optimiser if the name is unknown."""
        known = isinstance(optimiser, str) and optimiser in ALGORITHMS
        return Spec(**self.constructors, optimiser=Constructor.from_part("optimiser", optimiser) if known else None)

    @cached_property
    def until_condition(self) -> Any:
        """The stop condition of all simulations of the sweep, or None."""
        if self.until is None:
            return None
        return as_condition(from_json(self.until) if self.until.startswith("{") else import_function(self.until))

    @property
    def batchable(self) -> bool:
        """Whether simulations at several points can be advanced together by one kernel call."""
        return bool(getattr(self.constructors["level"].make, "batchable", False))

    def arguments(self, point: Point) -> dict[str, dict[str, Any]]:
        """Return the arguments of each constructor and of `simulate` at a point of the sweep, defaults included."""
        given = {**self.fixed, **point}
        optimiser = given.pop(OPTIMISER, None)
        t_max = given.pop(FINAL_TIME, self.t_max)
        if t_max is None:
            raise BadInput("t_max is missing. Give it, in samples per dimension.")
        for name in given:
            self.constructors_with_argument(name, optimiser)
        found = self.make_spec(optimiser).arguments(given, "Give it in fixed= or over=.")
        own = {"name": optimiser, **found["optimiser"]} if optimiser else {}
        return {**found, "optimiser": own, "simulate": {"t_max": float(t_max)}}

    def constructors_with_argument(self, name: str, optimiser: str | None = None) -> list[str]:
        """Return which constructors (problem, optimiser, level, start) take a parameter; raise `BadInput` if none does.

        A parameter in `fixed` may belong to the optimiser of other points.
        """
        if name in (OPTIMISER, FINAL_TIME):
            return []
        spec = self.make_spec(optimiser)
        if users := spec.constructors_with_argument(name):
            return users
        part, _, bare = name.rpartition(".")
        having = [each for each, cls in ALGORITHMS.items() if bare in inspect.signature(cls).parameters]
        if having and optimiser is not None and part in ("", "optimiser"):
            if spec.optimiser is None:  # no optimiser has this name, which `check` says
                return ["optimiser"]
            if name in self.fixed:
                return []
            raise BadInput(
                f"{name} is not a parameter of the optimiser {optimiser}, but of {', '.join(having)}. Give it in fixed."
            )
        choices = sorted({each for part in self.constructors.values() for each in part.parameters} | {OPTIMISER, FINAL_TIME})
        raise BadInput(f"{name} is not a parameter of this sweep. Its parameters are {', '.join(choices)}.")

    def check(self, name: str, value: Any, optimiser: str | None = None) -> None:
        """Raise `BadInput` if a value is not valid for a parameter of the sweep."""
        if name == FINAL_TIME:
            positive(name, value)
        elif name == OPTIMISER:
            check_choice(OPTIMISER, value, ALGORITHMS)
        elif self.constructors_with_argument(name, optimiser):
            self.make_spec(optimiser).check(name, value)

    def build_simulation(self, point: Point) -> dict[str, Any]:
        """Build the problem, the level and the start at a point of the sweep; return them and t_max, by name."""
        found = self.arguments(point)
        optimiser = found["optimiser"].pop("name", None)
        refusal = f"optimiser must be left out for a problem that has its own algorithm; got {optimiser!r}. Leave it out."
        return {**self.make_spec(optimiser).build(found, refusal), **found["simulate"]}


def encode_value(value: Any) -> Any:
    """Return a parameter value as nested JSON values: numbers, lists and dictionaries."""
    return json.loads(to_json(to_plain(value)))


def decode_value(value: Any) -> Any:
    """Return the parameter value that `encode_value` turned into JSON values."""
    return from_json(json.dumps(value))


def as_coordinate(value: Any) -> Any:
    """Return a parameter value as a coordinate of a dataset: a number or a string, and a short string for any other object."""
    if isinstance(value, (bool, int, float, str, np.generic)):
        return value
    if value is None:
        return "none"
    if is_schedule(value):
        return repr(value)
    if isinstance(value, eqx.Module):
        shown = ", ".join(f"{each.name}={as_coordinate(getattr(value, each.name))}" for each in constructor_fields(value))
        return f"{type(value).__name__}({shown})"
    if isinstance(value, tuple):
        return f"({', '.join(str(as_coordinate(each)) for each in value)})"
    return getattr(value, "__name__", None) or str(value)
