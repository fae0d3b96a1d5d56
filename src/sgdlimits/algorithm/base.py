"""The interface of an algorithm, and what algorithms that follow gradients share."""

from __future__ import annotations

import abc
import inspect
import operator
import os
import traceback
from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar, Self

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from sgdlimits.algorithm.weights import Now, Weights
from sgdlimits.checks import function
from sgdlimits.domain import NotNegativeInTime, Rate, Rates, Size
from sgdlimits.errors import BadInput, check_count, check_number, shorten
from sgdlimits.part import Part
from sgdlimits.statistics.overlaps import STUDENT, Scalars, select_scalars
from sgdlimits.statistics.trees import as_floats
from sgdlimits.trial import describe_error


class Algorithm(Part):
    r"""How weights move. A subclass implements `step`, once, for all levels.

    `step` is given the step as it stands (`Now`) and returns the new weights of each name that the algorithm remembers. It adds
    up weights as in R^d: `now.student`, `now["velocity"]`, `now.gradient()`, which is the mean gradient of the batch over d,
    and `now.along(c)`, which is the sum of :math:`c_i x_i` over d. From that follow SGD in R^d, the exact chain and, where the
    weights change by order 1/d in a step, the ODE and the SDE.

    Attributes
    ----------
    memory : names of what is remembered beside the students, each p directions, and how it begins: as `zero` or as a `copy`
    numbers : names of numbers that are remembered, and what they begin at: a number, or (number,) for one a unit
    uses_gram : whether a step depends on the lengths and products of inputs, as norms and gradients elsewhere do
    linear : whether a step is linear in the gradient, at the students, and coefficients are numbers
    uses_noise : whether a step has a noise vector for each student, `now.noise()`
    reuses : whether a step takes more than one gradient of its batch
    """

    memory: ClassVar[Mapping[str, str]] = {}
    numbers: ClassVar[Mapping[str, float | tuple[float]]] = {}
    uses_gram: ClassVar[bool] = False
    linear: ClassVar[bool] = False
    uses_noise: ClassVar[bool] = False
    reuses: ClassVar[bool] = False

    @abc.abstractmethod
    def step(self, now: Now) -> Mapping[str, Any]:
        """The new weights of "student" and of each name of `memory`, and the new numbers."""

    @property
    @abc.abstractmethod
    def batch(self) -> int:
        """The samples of a step."""

    @property
    @abc.abstractmethod
    def sphere(self) -> bool:
        """Whether each student is held at norm 1."""

    @property
    @abc.abstractmethod
    def trains_second(self) -> bool:
        """Whether the network's scalars are trained."""

    @property
    def trained_scalars(self) -> bool | tuple[str, ...]:
        """Which of the network's scalars are trained: all, none, or those of some names."""
        return self.trains_second

    def trained(self, scalars: Scalars) -> Scalars:
        """Of the network's scalars, or of slopes in them, those that are trained; () where none are."""
        return select_scalars(scalars, self.trained_scalars)

    @property
    def ridge(self) -> Float[Array, ""] | float:
        """The strength of the ridge penalty that is part of the landscape."""
        return 0.0

    @property
    def lr_sample(self) -> Float[Array, ""] | float:
        """The learning rate of the first layer for one sample, in which paper time is counted."""
        return 1.0

    @property
    def names(self) -> tuple[str, ...]:
        """Whose directions there are: the students', then what is remembered."""
        return (STUDENT, *self.memory)

    @property
    def order(self) -> tuple[str, ...]:
        """The names, each after those it is made of: what is remembered from zero, the students, copies of them."""
        before = [name for name, begins in self.memory.items() if begins == "zero"]
        return (*before, STUDENT, *(name for name in self.memory if name not in before))

    @property
    def limit(self) -> Algorithm:
        """The algorithm that this one becomes as d grows, where that is another one."""
        return self

    def at_rates(self, factor: Float[Array, ""]) -> Self:
        """The same with all learning rates multiplied by a factor."""
        raise BadInput(f"{_name(self)} does not say which of its numbers are learning rates. Give it `at_rates`.")

    def inputs(self, width: int) -> int:
        """L, the vectors of one step."""
        return self.batch + width * self.uses_noise


class Move(eqx.Module):
    """The new weights of one name: coefficients of the old by name and of the inputs over d, scalars, whether to scale."""

    name: str = eqx.field(static=True)
    past: dict[str, Any]
    inputs: Float[Array, "p L"]
    scalars: PyTree
    unit: bool = eqx.field(static=True)


def moves(algorithm: Algorithm, now: Now) -> tuple[tuple[Move, ...], dict[str, Array]]:
    """What a step does to the weights of each name, in their order, and the new numbers: checked."""
    step, p = _tried_step(algorithm, now), now.fields_of[STUDENT].shape[0]
    wanted = {*now.names, *now.kept}
    if not isinstance(step, Mapping) or set(step) != wanted:
        got = sorted(step) if isinstance(step, Mapping) else type(step).__name__
        raise BadInput(
            f"{_name(algorithm)}.step must return {sorted(wanted)}; got {got}. Return a dictionary with these names."
        )
    for name in now.names:
        if not isinstance(step[name], Weights):
            raise BadInput(
                f"{_name(algorithm)}.step must return weights as {name!r}; got {type(step[name]).__name__}. "
                "Combine now.student, now.gradient() and now.along(...)."
            )
    for name, old in now.kept.items():
        if jnp.shape(step[name]) != jnp.shape(old):
            raise BadInput(
                f"{_name(algorithm)}.step must return {name!r} with the shape {jnp.shape(old)}; got {jnp.shape(step[name])}. "
                "Sum what it returns."
            )
    return tuple(_move(name, step[name], p) for name in now.names), {name: step[name] for name in now.kept}


def _tried_step(algorithm: Algorithm, now: Now) -> Mapping[str, Any]:
    """Return what the algorithm's step returns; report its errors in one sentence with the name and line of the algorithm."""
    try:
        return algorithm.step(now)
    except BadInput:
        raise
    except (TypeError, ValueError, LookupError, AttributeError, NameError, ArithmeticError) as reason:
        file = inspect.getfile(type(algorithm).step)
        lines = [frame.lineno for frame in traceback.extract_tb(reason.__traceback__) if frame.filename == file]
        where = f" in line {lines[-1]} of {os.path.basename(file)}" if lines else ""
        raise BadInput(f"{_name(algorithm)}.step fails{where}: {describe_error(reason)}") from None


def check_memory(algorithm: Algorithm, taken: Collection[str]) -> None:
    """Raise `BadInput` where an algorithm remembers under a name that datasets have already, or begins in no known way."""
    function(f"{_name(algorithm)}.step", algorithm.step)
    for what in ("memory", "numbers"):
        if not isinstance(given := getattr(algorithm, what), Mapping):
            raise BadInput(f"{_name(algorithm)}.{what} must be a dictionary by name; got {shorten(given)}. Give one.")
    for name in (*algorithm.memory, *algorithm.numbers):
        if not isinstance(name, str) or not name.isidentifier() or name in taken:
            raise BadInput(f"{_name(algorithm)} cannot remember {name!r}: it is taken or no name. Give another one.")
    for name, begins in algorithm.memory.items():
        if not isinstance(begins, str) or begins not in ("zero", "copy"):
            raise BadInput(f"{_name(algorithm)} begins {name!r} as {shorten(begins)}. Give 'zero', or 'copy' of the students.")
    for name, value in algorithm.numbers.items():
        check_number(f"{name!r} of {_name(algorithm)}", value[0] if isinstance(value, tuple) and value else value)


def _move(name: str, weights: Weights, p: int) -> Move:
    inputs = jnp.zeros((p, weights.now.fixed.shape[1])) if weights.inputs is None else weights.inputs
    return Move(name, weights.past, inputs, weights.numbers, weights.is_unit)


def _name(algorithm: Algorithm) -> str:
    return type(algorithm).__name__


def is_lower(found: Sequence[Move]) -> bool:
    """Whether A is lower triangular, for moves of many runs: no name is made of later ones, nor of itself by a matrix."""
    place = {move.name: i for i, move in enumerate(found)}
    earlier = lambda move, name: place[name] < place[move.name] or (name == move.name and move.past[name].ndim < 3)
    return all(earlier(move, name) for move in found for name in move.past)


def combined(found: Sequence[Move], X: Float[Array, "..."], axis: int = 0) -> Float[Array, "..."]:
    """AX for moves of many runs: X has the directions on an axis, in the order of the moves, and the runs on the last."""
    parts = jnp.split(X, len(found), axis) if len(found) > 1 else [X]
    named = {move.name: part for move, part in zip(found, parts, strict=True)}
    rows = [sum((_times(c, named[name], axis) for name, c in move.past.items()), jnp.zeros(())) for move in found]
    rows = [jnp.broadcast_to(row, parts[0].shape) for row in rows]
    return jnp.concatenate(rows, axis) if len(rows) > 1 else rows[0]


def _times(c: Float[Array, "... runs"], X: Float[Array, "... runs"], axis: int) -> Float[Array, "... runs"]:
    """A number, a number for each row or a matrix, for each run, times rows on an axis."""
    if c.ndim == 1:
        return c * X
    rows = jnp.moveaxis(X, axis, 0)
    wide = c.reshape(*c.shape[:-1], *(1 for _ in range(X.ndim - 2)), c.shape[-1])
    return jnp.moveaxis(wide * rows if c.ndim == 2 else (wide * rows[None]).sum(1), 0, axis)


def _rates(rates: Any) -> Any:
    """One learning rate, or one for each name that has one."""
    if not isinstance(rates, Mapping):
        return as_floats(rates)
    return {name: as_floats(rate) for name, rate in rates.items() if rate is not None} or None


class Descent(Algorithm):
    """What algorithms that follow the gradient of a batch share.

    Parameters
    ----------
    lr : learning rate of the first layer
    lr_second : learning rate of the second layer, or of each scalar by name; None, or no rate, keeps them fixed
    ridge : strength of the ridge penalty on both layers
    sphere : whether each u_j is held at norm 1
    batch : b, the samples of a step, over which the gradient is averaged
    """

    lr: Rate = eqx.field(converter=as_floats)
    lr_second: Rates | None = eqx.field(converter=_rates, default=None, kw_only=True)
    ridge: NotNegativeInTime = eqx.field(converter=as_floats, default=0.0, kw_only=True)
    sphere: bool = eqx.field(static=True, converter=bool, default=False, kw_only=True)
    batch: Size = eqx.field(static=True, default=1, kw_only=True)

    def __check_init__(self) -> None:
        check_number("lr", self.lr, above=0)
        for name, rate in (self.lr_second if isinstance(self.lr_second, dict) else {"": self.lr_second}).items():
            if rate is not None:
                check_number(f"lr_second[{name!r}]" if name else "lr_second", rate, above=0)
        check_number("ridge", self.ridge, at_least=0)
        check_count("batch", self.batch)

    @property
    def trains_second(self) -> bool:
        return self.lr_second is not None

    @property
    def trained_scalars(self):
        return tuple(self.lr_second) if isinstance(self.lr_second, dict) else self.trains_second

    @property
    def lr_sample(self):
        return self.lr / self.batch

    def at_rates(self, factor):
        rates = jax.tree.leaves((self.lr, self.lr_second))
        return eqx.tree_at(lambda own: jax.tree.leaves((own.lr, own.lr_second)), self, [factor * rate for rate in rates])

    def push(self, now: Now, at: Weights | None = None) -> Weights:
        """Minus the learning rates times the gradient of loss and ridge, over d, at the students or elsewhere."""
        return self.downhill(now.gradient(at) + (self.ridge * now.inv_d) * (now.student if at is None else at))

    def downhill(self, slope: Weights) -> Weights:
        """Weights by minus the learning rates, those of the directions and those of the scalars."""
        return slope.times(-self.lr, 0.0 if self.lr_second is None else jax.tree.map(operator.neg, self.lr_second))

    def held(self, student: Weights) -> Weights:
        """The students, on the sphere scaled to norm 1."""
        return student.unit() if self.sphere else student


def of_base(name: str, doc: str | None = None) -> Any:
    """What a wrapper has as its base has it."""
    return property(lambda wrapper: getattr(wrapper.base, name), doc=doc)


class Wrapper(Algorithm):
    """An algorithm that changes another, `base`: whatever is not its own is the base's."""

    base: Algorithm

    batch = of_base("batch")
    sphere = of_base("sphere")
    trains_second = of_base("trains_second")
    trained_scalars = of_base("trained_scalars")
    memory = of_base("memory", "What is remembered beside the students, and how it begins.")
    numbers = of_base("numbers", "Numbers that are remembered, and what they begin at.")
    uses_noise = of_base("uses_noise")
    reuses = of_base("reuses")
    ridge = of_base("ridge")
    lr_sample = of_base("lr_sample")

    @property
    def limit(self) -> Algorithm:
        """The wrapper around the limit of its base."""
        base = self.base.limit
        return self if base is self.base else eqx.tree_at(lambda own: own.base, self, base)

    def at_rates(self, factor):
        return eqx.tree_at(lambda own: own.base, self, self.base.at_rates(factor))

    def __check_init__(self) -> None:
        if not isinstance(self.base, Algorithm):
            raise BadInput(f"{_name(self)} changes another algorithm; got {type(self.base).__name__}. Give OnePassSGD(lr).")
