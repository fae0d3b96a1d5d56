"""What is simulated at a point: its parameters go to the problem, the algorithm, the level and the start by name."""

from __future__ import annotations

import dataclasses
import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import equinox as eqx
import numpy as np

from sgdlimits.algorithm import ALGORITHMS, OnePassSGD
from sgdlimits.algorithm.sgd import inherit_arguments
from sgdlimits.checks import level as check_level, positive
from sgdlimits.docstring import constructor_fields
from sgdlimits.domain import checks_of
from sgdlimits.errors import BadInput, check_choice, shorten
from sgdlimits.kernel.choose import check_kernel
from sgdlimits.level import LEVELS
from sgdlimits.level.condition import as_condition
from sgdlimits.problem.base import Problem
from sgdlimits.problem.presets import PRESETS
from sgdlimits.renamed import parameter_of
from sgdlimits.run.record import from_json, to_json
from sgdlimits.run.simulate import saved_times
from sgdlimits.run.sweeps.design import Point, to_plain
from sgdlimits.run.sweeps.keep import as_keep, stop_condition_of
from sgdlimits.run.sweeps.names import function_name, import_function, is_importable
from sgdlimits.start import STARTS, as_start

OPTIMISER, END = "optimiser", "t_max"
"""Parameters beside those of the problem, the level and the start: which algorithm, and how long."""


@dataclass(frozen=True)
class Recipe:
    """A sweep but for its points. It is plain text and numbers, which other processes can be given.

    Parameters
    ----------
    build : the name of a preset, or module:function of a function that returns a problem
    level, start : a name, or the JSON of an object, whose parameters points may replace
    fixed : values of parameters that all points share
    t_max, save, until : of `simulate`; `until` as JSON or as module:function
    keep : what is kept, by name, with options; everything where it is empty
    seed : a whole number
    common : whether all points have the same random numbers
    kernel : of `simulate`
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
    def of(cls, preset: Any, level: Any, start: Any, *, until: Any = None, keep: Any = None, save: Any = None, **more: Any):
        """A recipe from what users give: names or objects."""
        fixed = {parameter_of(name): to_plain(value) for name, value in (more.pop("fixed", None) or {}).items()}
        kept = as_keep(keep)
        if more.get("kernel") is not None:
            check_kernel(more["kernel"])
        if save is not None:
            saved_times(save, more.get(END) or np.max(save))
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
        """The recipe as text, for other processes, which must be able to import its functions."""
        for name in (self.build, self.until or "", *self.keep):
            if ":" in name and not name.startswith("{") and not is_importable(name):
                raise BadInput(
                    f"{name} is known to this process alone, and others have to import it. "
                    "Put the function into a module of its own, or leave out engine."
                )
        values = {each.name: getattr(self, each.name) for each in dataclasses.fields(self)}
        return json.dumps({**values, "fixed": {name: encoded(value) for name, value in self.fixed.items()}})

    @classmethod
    def from_json(cls, text: str) -> Recipe:
        values = json.loads(text)
        return cls(**{**values, "fixed": {name: decoded(value) for name, value in values["fixed"].items()}})

    @cached_property
    def builder(self) -> Callable[..., Problem]:
        if ":" in self.build:
            return import_function(self.build)
        if self.build not in PRESETS:
            raise BadInput(f"there is no preset {self.build!r}. Give one of {', '.join(PRESETS)}, or module:function.")
        return PRESETS[self.build]

    @cached_property
    def parts(self) -> dict[str, Part]:
        """The problem, the level and the start: what each is made by, and what it has already."""
        return {
            "problem": Part(self.builder, {}),
            "level": _part("level", self.level, LEVELS),
            "start": _part("start", self.start, STARTS),
        }

    @cached_property
    def until_condition(self) -> Any:
        if self.until is None:
            return None
        return as_condition(from_json(self.until) if self.until.startswith("{") else import_function(self.until))

    @property
    def batchable(self) -> bool:
        """Whether steps at several points can be made together."""
        return bool(getattr(self.parts["level"].make, "batchable", False))

    def arguments(self, point: Point) -> dict[str, dict[str, Any]]:
        """What the problem, the algorithm, the level and the start are made of at a point, defaults included."""
        given = {**self.fixed, **point}
        optimiser = given.pop(OPTIMISER, None)
        t_max = given.pop(END, self.t_max)
        if t_max is None:
            raise BadInput("t_max is missing. Give it, in samples per dimension.")
        own = {name: dict(part.given) for name, part in self.parts.items()}
        own["optimiser"] = {}
        for name, value in given.items():
            for where in self.users(name, optimiser):
                own[where][name.rpartition(".")[2]] = value
        found = {name: {**part.defaults, **own[name]} for name, part in self.parts.items()}
        for name, part in self.parts.items():
            if missing := [each for each in part.required if each not in found[name]]:
                raise BadInput(f"the {name} {part.title} needs {missing[0]}, which is missing. Give it, fixed or over values.")
        return {
            **found,
            "optimiser": {"name": optimiser, **own["optimiser"]} if optimiser else {},
            "simulate": {"t_max": float(t_max)},
        }

    def users(self, name: str, optimiser: str | None = None) -> list[str]:
        """Return which of problem, optimiser, level and start have a parameter; raise `BadInput` where none has it.

        A parameter of another optimiser may be among the fixed ones: it is for other points.
        """
        if name in (OPTIMISER, END):
            return []
        where, _, bare = name.rpartition(".")
        known = [part for part in ("problem", "level", "start") if bare in self.parts[part].parameters]
        optimisers: Mapping[str, Any] = ALGORITHMS
        having = [each for each, cls in optimisers.items() if bare in {own.name for own in constructor_fields(cls)}]
        if "problem" not in known and (
            optimiser in having or (having and optimiser is not None and optimiser not in list(ALGORITHMS))
        ):
            known.append("optimiser")
        known = [part for part in known if part == where] if where else known
        if not known and having and optimiser is not None and where in ("", "optimiser"):
            if name in self.fixed:  # it is for points with another optimiser
                return []
            raise BadInput(
                f"{name} is no parameter of the optimiser {optimiser}, but of {', '.join(having)}. Give it in fixed."
            )
        if not known:
            choices = sorted({each for part in self.parts.values() for each in part.parameters} | {OPTIMISER, END})
            raise BadInput(f"{name} is no parameter of this sweep. Its parameters are {', '.join(choices)}.")
        return known

    def check(self, name: str, value: Any, optimiser: str | None = None) -> None:
        """`BadInput` where a value cannot be that of a parameter."""
        if name == END:
            positive(name, value)
        if name == OPTIMISER:
            check_choice(OPTIMISER, value, ALGORITHMS)
        for where in self.users(name, optimiser):
            make = ALGORITHMS.get(str(optimiser)) if where == "optimiser" else self.parts[where].make
            checks, bare = checks_of(make), name.rpartition(".")[2]
            if bare in checks:
                checks[bare](name, value)

    def simulation(self, point: Point) -> dict[str, Any]:
        """What `simulate` takes for a point: the problem, the level, the start and t_max, by name."""
        found = self.arguments(point)
        made = {name: part.make(**found[name]) for name, part in self.parts.items()}
        problem = made["problem"]
        if not isinstance(problem, Problem):
            raise BadInput(f"{self.build} must return a problem; got {shorten(problem)}. Return a ProjectionProblem.")
        return {**made, "problem": _optimised_by(problem, **found["optimiser"]), **found["simulate"]}


class Part(NamedTuple):
    """A function or class, and arguments that it has already."""

    make: Callable[..., Any]
    given: dict[str, Any]
    title: str = ""

    @property
    def parameters(self) -> Mapping[str, inspect.Parameter]:
        return inspect.signature(self.make).parameters

    @property
    def defaults(self) -> dict[str, Any]:
        return {name: p.default for name, p in self.parameters.items() if p.default is not p.empty}

    @property
    def required(self) -> list[str]:
        simple = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        return [name for name, p in self.parameters.items() if p.default is p.empty and p.kind in simple]


def encoded(value: Any) -> Any:
    """A value as JSON has it."""
    return json.loads(to_json(to_plain(value)))


def decoded(value: Any) -> Any:
    """What `encoded` made JSON of."""
    return from_json(json.dumps(value))


def _part(what: str, given: str, known: Mapping[str, type]) -> Part:
    if not given.startswith("{"):
        return Part(known[check_choice(what, given, known)], {}, given)
    thing = from_json(given)
    names = {each.name for each in dataclasses.fields(thing)} & set(inspect.signature(type(thing)).parameters)
    return Part(type(thing), {name: getattr(thing, name) for name in names}, type(thing).__name__)


def _optimised_by(problem: Problem, name: str | None = None, **own: Any) -> Problem:
    """The problem with the algorithm of a name, which has the rates and the other options of its own SGD."""
    if name is None or (name == "sgd" and not own):
        return problem
    algorithm = getattr(problem, "algorithm", None)
    if not isinstance(algorithm, OnePassSGD):
        raise BadInput(f"optimiser must be left out for this problem, whose algorithm is its own; got {name!r}.")
    first, like = inherit_arguments(algorithm, ALGORITHMS[name], own.pop("batch", None))
    return problem.with_algorithm(ALGORITHMS[name](*first, **{**like, **own}))  # type: ignore[attr-defined]


def label(value: Any) -> Any:
    """A value as a coordinate: numbers and words as they are, others as a short text."""
    if isinstance(value, (bool, int, float, str, np.generic)):
        return value
    if value is None:
        return "none"
    if isinstance(value, eqx.Module):
        shown = ", ".join(f"{each.name}={label(getattr(value, each.name))}" for each in constructor_fields(value))
        return f"{type(value).__name__}({shown})"
    if isinstance(value, tuple):
        return f"({', '.join(str(label(each)) for each in value)})"
    return getattr(value, "__name__", None) or str(value)
