"""The settings of the page: a preset and an optimiser with their numbers, a start and the runs.

Read from a message of the page, checked, and written as Python and as a command line.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cached_property
from typing import Any

from sgdlimits.algorithm import ALGORITHMS, Descent, OnePassSGD
from sgdlimits.algorithm.sgd import inherit_arguments
from sgdlimits.checks import integer, number
from sgdlimits.docstring import constructor_fields, typed_parameters
from sgdlimits.errors import BadInput, shorten
from sgdlimits.level import ODE, SDE, Chain, Level, MeanField
from sgdlimits.level.condition import check_threshold
from sgdlimits.problem.base import Problem
from sgdlimits.problem.presets import PRESETS
from sgdlimits.start import FixedInit, OrthogonalInit, RandomInit, Start

SAVE, MOST_SAVE = 400, 2000
"""Saved times of all runs on the page: the first of them, up to the second where the chain takes long from one to the next."""
BETWEEN = 10**6
"""Samples of all runs together between two saved times, where there are more than the fewest: some hundredths of a second."""
LIMIT_RUNS = 16
"""Of so many of the starts the limits are followed."""
LIMITS: dict[str, Callable[[str, Any], Any]] = {
    "width": integer(below=65), "teachers": integer(below=33), "batch": integer(below=1025),
    "order": integer(at_least=2, below=9),
    "d": integer(below=10**9 + 1), "runs": integer(below=513), "t_max": number(above=0, below=1e5 + 1),
    "seed": integer(at_least=0, below=2**64), "times": integer(below=65),
}  # fmt: skip
"""What a page may ask for, where that is less than what the package allows."""
STARTS: dict[str, tuple[type[Start], str, float | None]] = {
    "random": (RandomInit, "d", None),
    "orthogonal": (OrthogonalInit, "spread", 0.01),
    "fixed": (FixedInit, "overlap", 0.1),
}
"""The starts: the class, the name of its number, and what that is unless given."""
CHOICES: dict[str, Mapping[str, Any]] = {"preset": PRESETS, "optimiser": ALGORITHMS, "start_from": STARTS}


def parameters(preset: str) -> dict[str, inspect.Parameter]:
    """What can be set of a preset, by name: all that one number, one word or one tick can say."""
    found = typed_parameters(PRESETS[preset])
    return {name: each for name, each in found.items() if name not in ("algorithm", "expectation", "direct")}


def optimiser_fields(name: str) -> dict[str, Any]:
    """What an algorithm has beyond plain SGD, by name."""
    common = {field.name for field in constructor_fields(Descent)} | {"base"}
    cls: Any = ALGORITHMS[name]
    return {field.name: field for field in constructor_fields(cls) if field.name not in common}


def plain(name: str, value: Any) -> Any:
    """A number, a word or a tick out of a message: text that is a number, such as 1/12 or inf, becomes one."""
    if isinstance(value, str):
        top, slash, bottom = value.partition("/")
        try:
            value = float(top) / float(bottom) if slash else float(value)
        except ValueError:
            return value[:80]
        except ZeroDivisionError:
            raise BadInput(f"{name} must be a number; got {shorten(value)}. Write it like 0.05, 1e6 or 1/12.") from None
    if isinstance(value, float) and math.isfinite(value) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    if value is None or isinstance(value, (bool, int, float)):
        return value
    raise BadInput(f"{name} must be one number, one word or true or false; got {shorten(value)}. Give one.")


@dataclasses.dataclass(frozen=True)
class Setting:
    """A preset with its numbers, an optimiser with its own, the start, and how long how many runs are followed.

    >>> setting = Setting.read({"preset": "phase_retrieval", "parameters": {"lr": "1/20"}, "d": 1e6})
    >>> setting.d, setting.problem.name, setting.start
    (1000000, 'phase_retrieval', RandomInit(d=1000000))
    >>> Setting.read({"preset": "phase_retrieval", "parameters": {"lr": -1}}).problem
    Traceback (most recent call last):
        ...
    sgdlimits.errors.BadInput: lr must be a finite number above 0; got -1. Give such a number.
    """

    preset: str = "phase_retrieval"
    parameters: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    optimiser: str = "sgd"
    optimiser_parameters: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    d: int = 3000
    t_max: float = 60.0
    runs: int = 64
    seed: int = 0
    start_from: str = "random"
    start_at: float | None = None
    threshold: float = 0.5

    @classmethod
    def read(cls, given: Any) -> Setting:
        """The setting of a message, or `BadInput` where it is none."""
        if not isinstance(given, dict):
            raise BadInput(f"a setting must be an object with names; got {shorten(given)}. Reload the page.")
        names = {field.name for field in constructor_fields(cls)}
        if unknown := sorted(set(given) - names):
            raise BadInput(f"a setting has no {shorten(unknown[0])}. It has {', '.join(sorted(names))}.")
        setting = cls(**{name: _read(name, value) for name, value in given.items() if value is not None})
        for what, own, known in (
            (setting.preset, setting.parameters, parameters(setting.preset)),
            (setting.optimiser, setting.optimiser_parameters, optimiser_fields(setting.optimiser)),
        ):
            for each in own:
                if each not in known:
                    raise BadInput(f"{what} has no {shorten(each)}. It has {', '.join(known) or 'no numbers of its own'}.")
        return setting

    @cached_property
    def algorithm(self) -> Any:
        """The algorithm with the rates and the other numbers of the preset's own SGD; None for plain SGD."""
        if self.optimiser == "sgd":
            return None
        plain_sgd = getattr(PRESETS[self.preset](**self.parameters), "algorithm", None)
        if not isinstance(plain_sgd, OnePassSGD):
            raise BadInput(f"the optimiser must be sgd for {self.preset}; got {self.optimiser}. Choose sgd.")
        missing = [name for name, field in optimiser_fields(self.optimiser).items()
                   if field.default is dataclasses.MISSING and name not in self.optimiser_parameters]  # fmt: skip
        if missing:
            raise BadInput(f"the optimiser {self.optimiser} needs {missing[0]}, which is missing. Give it.")
        first, like = inherit_arguments(plain_sgd, ALGORITHMS[self.optimiser])
        return ALGORITHMS[self.optimiser](*first, **like, **self.optimiser_parameters)

    @cached_property
    def problem(self) -> Problem:
        chosen = {} if self.algorithm is None else {"algorithm": self.algorithm}
        return PRESETS[self.preset](**self.parameters, **chosen)

    @cached_property
    def start(self) -> Start:
        cls, _, usual = STARTS[self.start_from]
        return cls(self.d) if usual is None else cls(usual if self.start_at is None else self.start_at)

    @cached_property
    def levels(self) -> dict[str, Level]:
        """The levels that are shown, by the name their datasets have in Python; the first one is what the others explain."""
        found: dict[str, Level] = {"chain": Chain(self.d), "ode": ODE(), "sde": SDE(self.d)}
        if self.problem.directions.width > 1 and self.optimiser == "sgd":
            with suppress(BadInput):
                MeanField().view(self.problem)
                found["mean_field"] = MeanField()
        return found

    @property
    def save(self) -> int:
        """How many times are saved: so many that pieces of the chain come often, whatever d is.

        >>> Setting().save, Setting(d=10**6, t_max=120.0, runs=16).save, Setting(d=10**9).save
        (400, 1920, 2000)
        """
        return int(min(MOST_SAVE, max(SAVE, self.d * self.t_max * self.runs / BETWEEN)))

    def how(self, level: str) -> dict[str, Any]:
        """The other arguments of `stream`: of the limits, which cost as much, only some of the starts are followed."""
        runs = self.runs if level in ("chain", "sde") else min(self.runs, LIMIT_RUNS)
        return {"t_max": self.t_max, "runs": runs, "seed": self.seed, "save": self.save}

    def python(self, levels: tuple[str, ...] = ("chain", "ode")) -> str:
        """A program that makes the datasets of the page, and prints the numbers under its curves."""
        own = [f"{name}={_text(value)}" for name, value in self.parameters.items()]
        own += [] if self.algorithm is None else [f"algorithm={_text(self.algorithm)}"]
        how = lambda level: ", ".join(f"{name}={value!r}" for name, value in self.how(level).items())
        made = "\n".join(f"{name} = sl.simulate(problem, {_text(self.levels[name])}, start, {how(name)})" for name in levels)
        return (
            f"import sgdlimits as sl\n\nproblem = sl.presets.{self.preset}({', '.join(own)})\n"
            f"start = {_text(self.start)}\n{made}\n\n"
            f"print(float(chain.risk[:, -1].mean()))  # the risk at the end, mean over runs\n"
            f"print(sl.summarise(sl.exit_times(chain, {self.threshold!r})).scaled({self.d}))  # exit times in samples\n"
        )

    def command(self, level: str = "chain") -> str:
        """A command line that makes a dataset of the page."""
        words = ["sgdlimits", "run", self.preset]
        for name, value in (*self.parameters.items(), *self.optimiser_parameters.items()):
            flag = name.replace("_", "-")
            words += [f"--{'' if value else 'no-'}{flag}"] if isinstance(value, bool) else [f"--{flag}", f"{value}"]
            if name in self.optimiser_parameters and name in parameters(self.preset):
                words[-2] = f"--optimiser-{flag}"
        words += ["--optimiser", self.optimiser] if self.optimiser != "sgd" else []
        words += ["--level", level.replace("_", "-")]
        words += ["--d", str(self.d)] if level in ("chain", "sde") or self.start_from == "random" else []
        words += ["--start", self.start_from] if self.start_from != "random" else []
        _, number_name, usual = STARTS[self.start_from]
        if usual is not None:
            words += [f"--{number_name}", repr(usual if self.start_at is None else self.start_at)]
        for name, value in self.how(level).items():
            words += [f"--{name.replace('_', '-')}", f"{value}"]
        return " ".join(words)


def _read(name: str, value: Any) -> Any:
    """What a setting has under a name, checked."""
    if name in CHOICES:
        if not isinstance(value, str) or value not in CHOICES[name]:
            raise BadInput(f"there is no {name} {shorten(value)}. There are {', '.join(CHOICES[name])}.")
        return value
    if name in ("parameters", "optimiser_parameters"):
        if not isinstance(value, dict) or len(value) > 32:
            raise BadInput(f"{name} must be an object with names; got {shorten(value)}. Reload the page.")
        every = {str(key): plain(str(key), one) for key, one in value.items()}
        return {key: LIMITS[key](key, one) if key in LIMITS else one for key, one in every.items() if one is not None}
    value = plain(name, value)
    if name == "threshold":
        check_threshold(value)
        return value
    return LIMITS[name](name, value) if name in LIMITS else number()(name, value)


def _text(value: Any) -> str:
    """A number, a word or an object of the package as Python builds it, the last with what differs from its defaults."""
    if isinstance(value, float) and not math.isfinite(value):
        return f"float('{value}')"
    if not dataclasses.is_dataclass(value):
        return repr(value)
    words = []
    for field in constructor_fields(value):
        own = getattr(value, field.name)
        own = float(own) if getattr(own, "ndim", None) == 0 else own
        if field.default is dataclasses.MISSING or own != field.default:
            words.append(f"{field.name}={_text(own)}")
    return f"sl.{type(value).__name__}({', '.join(words)})"
