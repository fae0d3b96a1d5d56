"""Settings of the explorer's page: a preset and an optimiser with their parameters, a start, and the runs.

A setting is read from a message of the page, checked, and formatted as Python code and as a command line.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
import shlex
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cached_property
from typing import Any, cast

from sgdlimits.algorithm import ALGORITHMS
from sgdlimits.checks import integer, number
from sgdlimits.cli.levels import option_name
from sgdlimits.docstring import constructor_fields, typed_parameters
from sgdlimits.errors import BadInput, shorten
from sgdlimits.level import ODE, SDE, Level, MeanField
from sgdlimits.level.condition import check_threshold
from sgdlimits.part import is_schedule
from sgdlimits.problem.base import Problem
from sgdlimits.problem.presets import PRESETS
from sgdlimits.spec import EXAMPLES, Constructor, Spec
from sgdlimits.start import STARTS as START_CLASSES, Start
from sgdlimits.text import SCHEDULE_TEXT

# More saved times than the first number make pieces of the chain come often, some hundredths of a second apart.
MIN_SAVED_TIMES, MAX_SAVED_TIMES = 400, 2000
SAMPLES_BETWEEN_TIMES = 10**6
"""Number of samples, summed over runs, between two saved times of a simulation for the explorer's page."""
MAX_LIMIT_RUNS = 16
"""Maximum number of runs of the ODE and of the mean-field limit, whose runs share no work."""
SETTING_LIMITS: dict[str, Callable[[str, Any], Any]] = {
    "width": integer(below=65), "teachers": integer(below=33), "batch": integer(below=1025),
    "order": integer(at_least=2, below=9),
    "d": integer(below=10**9 + 1), "runs": integer(below=513), "t_max": number(above=0, below=1e5 + 1),
    "seed": integer(at_least=0, below=2**64), "times": integer(below=65),
}  # fmt: skip
"""Checks of values that the page restricts more than the package does, by the names of the values."""
STARTS: dict[str, tuple[str, float | None]] = {
    name: (number, None if number == "d" else EXAMPLES[number])
    for name in START_CLASSES
    for number in Constructor.from_part("start", name).required
}
"""Number that each start takes, by the start's name, with a default; None if the chain's d is the default."""
MAX_SCHEDULE_LENGTH = 4000
"""Maximum number of characters in a string that gives a schedule."""
SETTING_CHOICES: dict[str, Mapping[str, Any]] = {"preset": PRESETS, "optimiser": ALGORITHMS, "start_from": STARTS}
"""Known presets, optimisers and starts by name, for each entry of a setting that names one."""


def preset_parameters(preset: str) -> dict[str, inspect.Parameter]:
    """Return the parameters of a preset, by name, that the page can set by a number, a string or a checkbox."""
    found = typed_parameters(PRESETS[preset])
    return {name: each for name, each in found.items() if name not in ("algorithm", "expectation", "direct")}


def optimiser_parameters(name: str) -> dict[str, inspect.Parameter]:
    """Return the parameters, by name, that an optimiser has beyond those of plain SGD."""
    return Constructor.from_part("optimiser", name).own_parameters


def parse_value(name: str, value: Any) -> Any:
    """Convert a value in a message to a number, a string or a bool; strings such as "1/12" or "inf" become numbers.

    The string of a schedule, such as "cosine(1/12, 0, 50)", stays as it is.
    """
    if isinstance(value, str):
        if SCHEDULE_TEXT.search(value):
            if len(value) > MAX_SCHEDULE_LENGTH:
                got = f"{len(value)} characters"
                raise BadInput(
                    f"{name} must be a schedule of at most {MAX_SCHEDULE_LENGTH} characters; got {got}. Shorten the schedule."
                )
            return value
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
    raise BadInput(f"{name} must be a number, a string, true or false; got {shorten(value)}. Give, for instance, 0.1.")


@dataclasses.dataclass(frozen=True)
class Setting:
    """Setting of the page: a preset and an optimiser with their parameters, a start, and the number and length of the runs.

    >>> setting = Setting.from_message({"preset": "phase_retrieval", "parameters": {"lr": "1/20"}, "d": 1e6})
    >>> setting.d, setting.problem.name, setting.start
    (1000000, 'phase_retrieval', RandomInit(d=1000000))
    >>> Setting.from_message({"preset": "phase_retrieval", "parameters": {"lr": -1}}).problem
    Traceback (most recent call last):
        ...
    sgdlimits.errors.BadInput: lr must be a finite number above 0; got -1. Give, for instance, 0.1.
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
    def from_message(cls, given: Any) -> Setting:
        """Return the setting in a message of the page; raise `BadInput` if the message has no valid setting."""
        if not isinstance(given, dict):
            raise BadInput(f"a setting must be a JSON object; got {shorten(given)}. Reload the page.")
        names = {field.name for field in constructor_fields(cls)}
        if unknown := sorted(set(given) - names):
            raise BadInput(f"a setting has no entry {shorten(unknown[0])}. Its entries are {', '.join(sorted(names))}.")
        setting = cls(**{name: _read_entry(name, value) for name, value in given.items() if value is not None})
        for what, own, known in (
            (setting.preset, setting.parameters, preset_parameters(setting.preset)),
            (setting.optimiser, setting.optimiser_parameters, optimiser_parameters(setting.optimiser)),
        ):
            for each in own:
                if each not in known:
                    raise BadInput(f"{what} has no parameter {shorten(each)}. Its parameters are {', '.join(known) or 'none'}.")
        return setting

    @property
    def start_number(self) -> tuple[str, float]:
        """Name and value of the number that determines the start, such as d for random weights."""
        name, default = STARTS[self.start_from]
        return name, self.d if default is None else default if self.start_at is None else self.start_at

    @cached_property
    def _built_parts(self) -> dict[str, Any]:
        """Objects that the page's setting describes: the problem, the exact chain as a level, and the start."""
        refusal = f"the optimiser must be sgd for {self.preset}; got {self.optimiser}. Choose sgd."
        values = {"problem": self.parameters, "optimiser": self.optimiser_parameters, "level": {"d": self.d}}
        spec = Spec.from_names(self.preset, "chain", self.start_from, self.optimiser)
        return spec.build({**values, "start": dict([self.start_number])}, refusal)

    @property
    def problem(self) -> Problem:
        """Learning problem of the preset, trained by the optimiser."""
        return self._built_parts["problem"]

    @property
    def final_problem(self) -> Problem:
        """Learning problem with its schedules at the end of the runs, for fixed points and phase portraits."""
        return self.problem.at(self.t_max)

    @property
    def start(self) -> Start:
        """Start of the runs that the page's setting describes."""
        return self._built_parts["start"]

    @cached_property
    def levels(self) -> dict[str, Level]:
        """Levels that the page shows, by name: exact chain, ODE, SDE, and the mean-field limit if the problem has one."""
        found: dict[str, Level] = {"chain": self._built_parts["level"], "ode": ODE(), "sde": SDE(self.d)}
        if self.problem.directions.width > 1 and self.optimiser == "sgd":
            with suppress(BadInput):
                MeanField().adapt_problem(self.problem)
                found["mean_field"] = MeanField()
        return found

    @property
    def save(self) -> int:
        """Number of saved times; it grows with the cost of the runs, so that the page receives pieces of the chain often.

        >>> Setting().save, Setting(d=10**6, t_max=120.0, runs=16).save, Setting(d=10**9).save
        (400, 1920, 2000)
        """
        samples = self.d * self.t_max * self.runs
        return int(min(MAX_SAVED_TIMES, max(MIN_SAVED_TIMES, samples / SAMPLES_BETWEEN_TIMES)))

    def stream_arguments(self, level: str) -> dict[str, Any]:
        """Return the arguments of `stream` for a level, other than problem, level and start.

        ODE and mean field have fewer runs.
        """
        runs = self.runs if level in ("chain", "sde") else min(self.runs, MAX_LIMIT_RUNS)
        return {"t_max": self.t_max, "runs": runs, "seed": self.seed, "save": self.save}

    def as_python(self, levels: tuple[str, ...] = ("chain", "ode")) -> str:
        """Return a Python program that makes the page's datasets and prints its headline numbers."""
        own = [f"{name}={_python_text(value)}" for name, value in self.parameters.items()]
        texts = {name: each for name, each in {**self.parameters, **self.optimiser_parameters}.items() if isinstance(each, str)}
        own += [] if self.optimiser == "sgd" else [f"algorithm={_python_text(cast(Any, self.problem).algorithm, texts)}"]
        how = lambda level: ", ".join(f"{name}={value!r}" for name, value in self.stream_arguments(level).items())
        call = lambda name: f"sl.simulate(problem, {_python_text(self.levels[name])}, start, {how(name)})"
        made = "\n".join(f"{name} = {call(name)}" for name in levels)
        return (
            f"import sgdlimits as sl\n\nproblem = sl.presets.{self.preset}({', '.join(own)})\n"
            f"start = {_python_text(self.start)}\n{made}\n\n"
            f"print(float(chain.risk[:, -1].mean()))  # the risk at the end, mean over runs\n"
            f"print(sl.summarise(sl.exit_times(chain, {self.threshold!r})).scaled({self.d}))  # exit times in samples\n"
        )

    def as_command(self, level: str = "chain") -> str:
        """Return a command line that makes the page's dataset at one level."""
        words = ["sgdlimits", "run", self.preset]
        taken = set(typed_parameters(PRESETS[self.preset]))
        optimiser = {option_name("optimiser", name, taken): value for name, value in self.optimiser_parameters.items()}
        for name, value in (*self.parameters.items(), *optimiser.items()):
            flag = name.replace("_", "-")
            switch = [f"--{'' if value else 'no-'}{flag}"]
            words += switch if isinstance(value, bool) else [f"--{flag}", shlex.quote(f"{value}")]
        words += ["--optimiser", self.optimiser] if self.optimiser != "sgd" else []
        words += ["--level", level.replace("_", "-")]
        words += ["--d", str(self.d)] if level in ("chain", "sde") or self.start_from == "random" else []
        number, value = self.start_number
        words += ["--start", self.start_from, f"--{number}", repr(value)] if self.start_from != "random" else []
        for name, value in self.stream_arguments(level).items():
            words += [f"--{name.replace('_', '-')}", f"{value}"]
        return " ".join(words)


def _read_entry(name: str, value: Any) -> Any:
    """Check one entry of a message from the page, and convert it to the value of a setting's field."""
    if name in SETTING_CHOICES:
        if not isinstance(value, str) or value not in SETTING_CHOICES[name]:
            raise BadInput(f"there is no {name} {shorten(value)}. Choose one of {', '.join(SETTING_CHOICES[name])}.")
        return value
    if name in ("parameters", "optimiser_parameters"):
        if not isinstance(value, dict) or len(value) > 32:
            raise BadInput(f"{name} must be a JSON object; got {shorten(value)}. Reload the page.")
        every = {str(key): parse_value(str(key), one) for key, one in value.items()}
        return {
            key: SETTING_LIMITS[key](key, one) if key in SETTING_LIMITS else one
            for key, one in every.items()
            if one is not None
        }
    value = parse_value(name, value)
    if name == "threshold":
        check_threshold(value)
        return value
    return SETTING_LIMITS[name](name, value) if name in SETTING_LIMITS else number()(name, value)


def _python_text(value: Any, texts: Mapping[str, str] | None = None) -> str:
    """Format a value or an object of the package as Python code, leaving out arguments that have their default.

    `texts` has the strings that were given for schedules, by argument names.
    """
    if isinstance(value, float) and not math.isfinite(value):
        return f"float('{value}')"
    if not dataclasses.is_dataclass(value):
        return repr(value)
    words = []
    for field in constructor_fields(value):
        own = getattr(value, field.name)
        if is_schedule(own):
            own = (texts or {}).get(field.name, own)
        elif getattr(own, "ndim", None) == 0:
            own = float(own)
        if field.default is dataclasses.MISSING or own != field.default:
            words.append(f"{field.name}={_python_text(own, texts)}")
    return f"sl.{type(value).__name__}({', '.join(words)})"
