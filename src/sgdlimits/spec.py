"""Specification of a simulation by name: its preset, optimiser, level and start, and the parameters that each of them takes.

Sweeps, the explorer and the command line are given names and values. Here they find which constructor takes a parameter,
whether it allows a value and which required parameters are missing, and they build the simulation. The module imports neither
datasets nor files, so that help pages of the command line are fast.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

from sgdlimits.algorithm import ALGORITHMS, Descent, OnePassSGD
from sgdlimits.algorithm.sgd import inherit_arguments
from sgdlimits.domain import checks_of
from sgdlimits.errors import BadInput, check_choice, shorten
from sgdlimits.level import LEVELS
from sgdlimits.part import constructor_arguments
from sgdlimits.problem.base import Problem
from sgdlimits.problem.presets import PRESETS
from sgdlimits.start import STARTS

INHERITED_ARGUMENTS = frozenset(field.name for field in dataclasses.fields(Descent)) | {"base"}
"""Arguments of optimisers that are taken from the preset's SGD: options such as lr and batch, or the SGD itself as `base`."""
EXAMPLES: dict[str, float] = {"d": 3000, "times": 3, "spread": 0.01, "overlap": 0.1}
"""Example values of required parameters, for messages and as defaults of the explorer."""


@dataclasses.dataclass(frozen=True)
class Constructor:
    """Function or class that builds one part of a simulation: the problem, optimiser, level or start.

    Parameters
    ----------
    part : "problem", "optimiser", "level" or "start"
    make : the function or class
    title : name of the function or class in messages
    given : values that replace the defaults of arguments, by name
    """

    part: str
    make: Any
    title: str = ""
    given: dict[str, Any] = dataclasses.field(default_factory=dict)

    @classmethod
    def from_part(cls, part: str, given: Any) -> Constructor:
        """Return the constructor with a name, or that of an object, with the object's arguments as defaults."""
        if isinstance(given, str):
            return CONSTRUCTORS[part][check_choice(part, given, CONSTRUCTORS[part])]
        return cls(part, type(given), type(given).__name__, dict(constructor_arguments(given)))

    @cached_property
    def parameters(self) -> Mapping[str, inspect.Parameter]:
        """Parameters of the function or class, by name."""
        return inspect.signature(self.make).parameters

    @property
    def own_parameters(self) -> dict[str, inspect.Parameter]:
        """Parameters of this constructor, without those that an optimiser takes from the preset's SGD."""
        return {
            name: each for name, each in self.parameters.items() if self.part != "optimiser" or name not in INHERITED_ARGUMENTS
        }

    @property
    def defaults(self) -> dict[str, Any]:
        """Values of the parameters that are given already or have a default, by name."""
        return {name: each.default for name, each in self.parameters.items() if each.default is not each.empty} | self.given

    @property
    def required(self) -> list[str]:
        """Names of the parameters that have no default and are not given yet."""
        named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        return [name for name, each in self.own_parameters.items() if name not in self.defaults and each.kind in named]

    def check_complete(self, values: Mapping[str, Any], remedy: str = "") -> None:
        """Raise `BadInput` if a required parameter has no value in `values`."""
        for name in self.required:
            if name not in values:
                raise BadInput(
                    f"the {self.part} {self.title} needs {name}, which is missing. {remedy or f'Give {name} a value.'}"
                )


_CLASSES: dict[str, Mapping[str, Any]] = {"problem": PRESETS, "optimiser": ALGORITHMS, "level": LEVELS, "start": STARTS}
CONSTRUCTORS = {part: {name: Constructor(part, make, name) for name, make in known.items()} for part, known in _CLASSES.items()}
"""Constructors of presets, optimisers, levels and starts: by the part of a simulation, then by name."""


@dataclasses.dataclass(frozen=True)
class Spec:
    """Constructors of the parts of a simulation; without an optimiser, the problem's own algorithm is used."""

    problem: Constructor
    level: Constructor
    start: Constructor
    optimiser: Constructor | None = None

    @classmethod
    def from_names(cls, preset: str, level: Any, start: Any, optimiser: str | None = None) -> Spec:
        """Return the constructors of the parts of a simulation from their names; level and start may also be objects.

        >>> spec = Spec.from_names("phase_retrieval", "chain", "random", "heavy_ball")
        >>> [spec.constructors_with_argument(name) for name in ("d", "lr", "beta", "start.d")]
        [['level', 'start'], ['problem'], ['optimiser'], ['start']]
        """
        given = {"problem": preset, "level": level, "start": start} | ({} if optimiser is None else {"optimiser": optimiser})
        return cls(**{part: Constructor.from_part(part, each) for part, each in given.items()})

    @property
    def constructors(self) -> dict[str, Constructor]:
        """Constructors by the part of the simulation that they build; the optimiser, if there is one, is last."""
        found = {"problem": self.problem, "level": self.level, "start": self.start}
        return found if self.optimiser is None else {**found, "optimiser": self.optimiser}

    def constructors_with_argument(self, name: str) -> list[str]:
        """Return which parts of the simulation take a parameter; `start.d` means the d of the start alone.

        A parameter of both the problem and the optimiser is given to the problem, whose preset passes it to the optimiser.
        """
        part, _, bare = name.rpartition(".")
        users = [each for each, constructor in self.constructors.items() if bare in constructor.parameters]
        return [each for each in users if part in ("", each) and not (each == "optimiser" and "problem" in users)]

    def check(self, name: str, value: Any) -> None:
        """Raise `BadInput` if a value is not valid for a parameter, in any part of the simulation that takes it."""
        bare = name.rpartition(".")[2]
        for part in self.constructors_with_argument(name):
            checks = checks_of(self.constructors[part].make)
            if bare in checks:
                checks[bare](name, value)

    def arguments(self, values: Mapping[str, Any], remedy: str = "") -> dict[str, dict[str, Any]]:
        """Return the arguments of each constructor from parameter values by name.

        Defaults are included, except those of the optimiser.
        """
        found = {part: {} if part == "optimiser" else each.defaults for part, each in self.constructors.items()}
        for name, value in values.items():
            for part in self.constructors_with_argument(name):
                found[part][name.rpartition(".")[2]] = value
        for part, constructor in self.constructors.items():
            constructor.check_complete(found[part], remedy)
        return found

    def build(self, arguments: Mapping[str, Mapping[str, Any]], refusal: str) -> dict[str, Any]:
        """Build the problem, the level and the start from the arguments of their constructors.

        `refusal` is the message of the `BadInput` for a problem that does not support the optimiser.
        """
        made = {part: self.constructors[part].make(**arguments[part]) for part in ("problem", "level", "start")}
        if not isinstance(made["problem"], Problem):
            got = shorten(made["problem"])
            raise BadInput(f"{self.problem.title} must return a problem; got {got}. Return a ProjectionProblem.")
        if self.optimiser is not None:
            made["problem"] = with_optimiser(made["problem"], self.optimiser, arguments["optimiser"], refusal)
        return made


def with_optimiser(
    problem: Any,
    optimiser: Constructor,
    own: Mapping[str, Any],
    refusal: str,
    check: Callable[[Constructor, Mapping[str, Any]], None] = Constructor.check_complete,
) -> Any:
    """Return a problem with another optimiser, which takes over the learning rates and other options of the problem's SGD.

    Parameters
    ----------
    problem : problem whose algorithm is `OnePassSGD`
    optimiser : constructor of the new algorithm; that of `OnePassSGD` changes nothing unless `own` has arguments
    own : arguments of the new algorithm that are not taken over, by name
    refusal : message of the `BadInput` for a problem with another algorithm
    check : function that raises `BadInput` if required arguments are missing
    """
    if optimiser.make is OnePassSGD and not own:
        return problem
    if not isinstance(plain := getattr(problem, "algorithm", None), OnePassSGD):
        raise BadInput(refusal)
    check(optimiser, own)
    first, taken_over = inherit_arguments(plain, optimiser.make, own.get("batch"))
    return problem.with_algorithm(optimiser.make(*first, **taken_over, **{name: own[name] for name in own if name != "batch"}))
