"""Annotations that carry checks of arguments, and the decorator `checked` that applies them.

An argument is annotated with a type that carries its check, `lr: Positive` for `Annotated[float, number(above=0)]`, or with a
plain type of `CHECKS_BY_TYPE`, such as `bool` or `Problem`. Type checkers see the plain type. Arguments of other types are not
checked.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, wraps
from typing import Annotated, Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from sgdlimits.checks import (
    Check,
    ScheduleCheck,
    algorithm,
    array,
    axes,
    check_each,
    dataset,
    either,
    expectation,
    flag,
    flag_or_rate,
    function,
    instance,
    integer,
    learning_rate_or_schedule,
    level,
    many,
    mapping,
    memory_bounded_count,
    name_or_function,
    not_negative,
    number,
    optional,
    path,
    positive,
    problem,
    rate_or_rates_by_name,
    real,
    start,
    statistics,
    string,
    target,
)
from sgdlimits.errors import BadInput, check_share, is_traced, shorten
from sgdlimits.part import is_schedule
from sgdlimits.renamed import argument_renamer

Checked = TypeVar("Checked", bound=Callable)
T = TypeVar("T")

ALGORITHM_ARGUMENTS = ("lr", "ridge", "batch", "sphere", "train_second")
"""Names of arguments that both presets and algorithms have, such as the learning rate lr."""
MAX_TEACHERS = 2**12
"""Maximum number of fixed directions (teachers), which bounds the size of their Gram matrix."""

NumberInTime = float | Any
"""Annotation of a number that may change with time: a float, an array, a `Schedule` or a function of t.

Schedules have the same arithmetic as numbers.
"""

Positive = Annotated[float, positive]
PositiveInTime = Annotated[NumberInTime, ScheduleCheck(positive)]
NotNegative = Annotated[float, not_negative]
NotNegativeInTime = Annotated[NumberInTime, ScheduleCheck(not_negative)]
Rate = Annotated[NumberInTime, learning_rate_or_schedule]
Rates = Annotated[Any, rate_or_rates_by_name]
MomentumInTime = Annotated[NumberInTime, ScheduleCheck(number(at_least=0, below=1))]
"""Annotation of a momentum coefficient or decay factor: at least 0 and below 1, possibly changing with time."""
SignalToNoise = Annotated[NumberInTime, ScheduleCheck(number(above=0, infinite=True))]
Fraction = Annotated[float, check_share]
"""Annotation of a number strictly between 0 and 1."""
Tolerance = Annotated[float, number(at_least=1e-14, below=1)]
RealWidth = Annotated[float, number(at_least=1, infinite=True)]
"""Annotation of a network's width in a formula, where it need not be an integer."""

Count = Annotated[int, integer()]
Seed = Annotated[int, integer(at_least=0, below=2**64)]
Size = Annotated[int, memory_bounded_count()]
"""Annotation of a number of runs, samples or other objects that must fit into this machine's memory."""
Width = Annotated[int, memory_bounded_count(8)]
Teachers = Annotated[int, integer(below=MAX_TEACHERS)]

RealArray = Annotated[ArrayLike, array()]
"""Annotation of an array of finite numbers, of any shape."""
RealArrayInTime = Annotated[Any, ScheduleCheck(array())]
Vector = Annotated[ArrayLike, array(ndim=1)]
Matrix = Annotated[ArrayLike, array(ndim=2)]
Times = Annotated[ArrayLike, array(at_least=0)]
SavedTimes = Annotated[
    int | Sequence[float] | np.ndarray,
    either("the number of times to save, or an array of times", "Give, say, save=200.", real, array(ndim=1)),
]
Function = Annotated[Callable[..., Any], function]
Statistics = Annotated[Any, statistics]
"""Annotation of the statistics of any kind of problem, such as `Overlaps`."""
UncheckedArgument = Annotated[T, None]
"""Annotation of an argument that the function checks itself, although `CHECKS_BY_TYPE` has a check for its type."""

inputs = instance("sgdlimits.inputs.base", "Inputs", "Inputs", "Make them with mixture(means).")
CHECKS_BY_TYPE: dict[str, Check] = {
    "bool": flag, "str": string, "float": real, "str | os.PathLike": path,
    "dict[str, Any]": mapping, "Mapping[str, Callable]": mapping,
    "Problem": problem, "ProjectionProblem": problem, "Algorithm": algorithm, "Level": level, "Target": target,
    "Inputs": inputs,
    "Inputs | Reused": either(
        "Inputs or Reused", "Make them with mixture(means), or Reused(n).", inputs,
        instance("sgdlimits.inputs.reused", "Reused", "", ""),
    ),
    "AnyNetwork": instance("sgdlimits.model.network", "AnyNetwork", "a network", "Give TwoLayer(width), for instance."),
    "InitialWeights": instance(
        "sgdlimits.problem.directions", "InitialWeights", "InitialWeights", "Give InitialWeights(unit=True)."
    ),
    "str | Callable | Activation": name_or_function, "Rule | Expectation": expectation,
    "bool | float": flag_or_rate,
    "Overlaps": statistics, "Start | PyTree": start, "Start | Overlaps | Particles | Spike | xr.Dataset": start,
    "xr.Dataset": dataset, "Sequence[xr.Dataset]": check_each(dataset), "Axes": axes,
}  # fmt: skip
"""Checks of plain types and of classes, by their annotation as a string; this module does not import the classes."""


def checks_of(thing: Any) -> Mapping[str, Check]:
    """Return the checks of a function's or a class constructor's arguments, by argument name."""
    constructor: Any = getattr(thing, "__init__", None) if isinstance(thing, type) else thing
    return getattr(constructor, "checks", {})


class Checks(Mapping[str, Check]):
    """Mapping from the arguments of a function or constructor to their checks, read from its annotations on first use."""

    def __init__(self, fn: Callable, cls: type | None) -> None:
        self.fn, self.cls = fn, cls

    @cached_property
    def parameters(self) -> Mapping[str, inspect.Parameter]:
        """Parameters of the function or constructor, by name."""
        return inspect.signature(self.fn).parameters

    @cached_property
    def by_name(self) -> dict[str, Check]:
        """Dictionary from argument names to checks; arguments without a check are left out."""
        return {name: check for name, each in self.parameters.items() if (check := self._check_of_parameter(each)) is not None}

    def _check_of_parameter(self, parameter: inspect.Parameter) -> Check | None:
        """Return the check in the annotation of a parameter, or None if it has none."""
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            return None
        annotation, names = self._annotation_of(parameter)
        check = annotated_check(annotation, names)
        # The default passes unchecked, so None needs a check of its own only where it is not the default.
        admits_none = "None" in str(annotation).split(" | ") and parameter.default is not None
        return optional(check) if check and admits_none else check

    def _annotation_of(self, parameter: inspect.Parameter) -> tuple[Any, Mapping[str, Any]]:
        """Return the annotation of a parameter, or of the class field with its name, and the namespace for its evaluation."""
        for cls in self.cls.__mro__ if self.cls else ():
            field = vars(cls).get("__annotations__", {}).get(parameter.name)
            # Equinox annotates the arguments of generated constructors that have converters with Any.
            if field and (parameter.annotation == field or parameter.annotation in (Any, "Any", parameter.empty)):
                return field, vars(sys.modules[cls.__module__])
        return parameter.annotation, getattr(inspect.unwrap(self.fn), "__globals__", {})

    def __getitem__(self, name: str) -> Check:
        return self.by_name[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.by_name)

    def __len__(self) -> int:
        return len(self.by_name)


def annotated_check(annotation: Any, names: Mapping[str, Any]) -> Check | None:
    """Return the check that an annotation carries, or None if it has none; the annotation is given as a string.

    `names` is the namespace in which the annotation is evaluated. Of a union, only the member that carries a check is
    evaluated, since other types may be imported for type checkers alone.

    >>> annotated_check("Positive | None", globals())("lr", 0.0)
    Traceback (most recent call last):
        ...
    sgdlimits.errors.BadInput: lr must be a finite number above 0; got 0. Give, for instance, 0.1.
    """
    if not isinstance(annotation, str):
        return None
    tree = ast.parse(annotation, mode="eval").body
    members = [each for each in _union_members(tree) if ast.unparse(each) != "None"]
    plain = " | ".join(map(ast.unparse, members))
    if plain in CHECKS_BY_TYPE:
        return CHECKS_BY_TYPE[plain]
    found = [check for each in members if (check := _member_check(each, names)) is not None]
    if any(ast.unparse(each) == "ArrayLike" for each in members):
        found = [many(CHECKS_BY_TYPE.get(ast.unparse(members[0])) or found[0])]
    return found[0] if found else None


def _union_members(tree: ast.expr) -> Iterator[ast.expr]:
    """Yield the members of a union of types, given as the syntax tree of an annotation."""
    if isinstance(tree, ast.BinOp) and isinstance(tree.op, ast.BitOr):
        yield from _union_members(tree.left)
        yield from _union_members(tree.right)
    else:
        yield tree


def _member_check(tree: ast.expr, names: Mapping[str, Any]) -> Check | None:
    """Return the check that one type of an annotation carries, as `Alias`, `Alias[...]` or `Annotated[..., check]`."""
    if isinstance(tree, ast.Subscript) and isinstance(tree.value, ast.Name) and tree.value.id == "Annotated":
        assert isinstance(tree.slice, ast.Tuple)
        # The text is an annotation in the source of the package or of the user's class, not input.
        return eval(compile(ast.Expression(tree.slice.elts[1]), "<annotation>", "eval"), dict(names))
    name = tree.value if isinstance(tree, ast.Subscript) else tree
    if not isinstance(name, ast.Name):
        return None
    return next((each for each in getattr(names.get(name.id), "__metadata__", ()) if callable(each)), None)


def checked(thing: Checked, /) -> Checked:
    """Decorate a function or class so that its arguments are checked as their annotations say.

    Traced values pass, and so does a value that is the argument's default. A number whose annotation also admits `ArrayLike`
    may be an array of such numbers.

    >>> @checked
    ... def samples(d: Count, lr: Positive = 1.0):
    ...     return d / lr
    >>> samples(3e3)
    3000.0
    >>> samples(30, lr="0.1")
    Traceback (most recent call last):
        ...
    sgdlimits.errors.BadInput: lr must be one number; got '0.1'. Give a number such as 0.1.
    """
    if isinstance(thing, type):
        cls: Any = thing
        cls.__init__ = _add_checks(cls.__init__, cls)
        return cls
    return _add_checks(thing)


def _add_checks(fn: Callable, cls: type | None = None) -> Any:
    """Wrap a function, or the constructor of `cls`, so that each call renames old keywords and checks the arguments."""
    checks = Checks(fn, cls)
    renamed = argument_renamer(fn)

    def check_argument(name: str, value: Any) -> Any:
        check = checks.by_name.get(name)
        # By identity: the default itself passes, an equal value of another type is checked.
        if check is None or value is checks.parameters[name].default:
            return value
        if is_schedule(value) and not isinstance(check, ScheduleCheck):
            raise BadInput(f"{name} cannot change with time; got {shorten(value)}. Give a constant.")
        if is_traced(value) and not is_schedule(value):
            return value
        return check(name, value)

    @wraps(fn)
    def call_with_checks(*args, **kwargs):
        kwargs = renamed(kwargs) if renamed else kwargs
        positional = [check_argument(name, value) for name, value in zip(checks.parameters, args, strict=False)]
        name_or_function = {name: check_argument(name, value) for name, value in kwargs.items()}
        if "algorithm" in checks.parameters:
            given = {**dict(zip(checks.parameters, positional, strict=False)), **name_or_function}
            _check_no_conflict(
                given, {name: each.default for name, each in checks.parameters.items() if name in ALGORITHM_ARGUMENTS}
            )
        return fn(*positional, *args[len(positional) :], **name_or_function)

    call_with_checks.checks = checks  # type: ignore[attr-defined]
    return call_with_checks


def _check_no_conflict(given: Mapping[str, Any], usual: Mapping[str, Any]) -> None:
    """Raise `BadInput` if an argument such as lr would be ignored because the given algorithm has its own value of it.

    `given` has the arguments of the call by name, `usual` their defaults, which never conflict.
    """
    algorithm = given.get("algorithm")
    for name in usual if algorithm is not None else ():
        value, own = given.get(name), _algorithm_argument(algorithm, name)
        if value is None or value is usual[name] or is_traced(value) or is_traced(own):
            continue
        if own is None or float(own) != float(bool(value) if name == "train_second" else value):
            shown = f"{value:g}" if isinstance(value, float) else str(value)
            raise BadInput(
                f"{name} = {shown} would be ignored: {shorten(algorithm)} has its own {name}. Give {name} to the algorithm."
            )


def _algorithm_argument(algorithm: Any, name: str) -> Any:
    """Return an algorithm's argument by name, or that of the algorithm inside a wrapper; None if neither has the argument."""
    inside = "trains_second" if name == "train_second" else name
    while algorithm is not None and not hasattr(algorithm, inside):
        algorithm = getattr(algorithm, "base", None)
    return getattr(algorithm, inside, None)
