"""Interface of algorithms, and base classes of gradient methods and of wrappers around another algorithm."""

from __future__ import annotations

import abc
import inspect
import operator
import os
import traceback
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from sgdlimits.algorithm.weights import StepContext, WeightCombination
from sgdlimits.checks import function
from sgdlimits.domain import NotNegativeInTime, Rate, Rates, Size
from sgdlimits.errors import BadInput, check_count, check_number, shorten
from sgdlimits.part import Part
from sgdlimits.renamed import ALGORITHM_MEMBERS, find_renamed_attribute
from sgdlimits.statistics.overlaps import STUDENT, Scalars, select_scalars
from sgdlimits.statistics.trees import as_floats
from sgdlimits.trial import describe_error


class StepRequirements(NamedTuple):
    """Flags that say which quantities, other than the fields of its inputs, a step of an algorithm uses.

    Parameters
    ----------
    gram : whether the step uses the lengths and inner products of inputs, on which norms and gradients at other weights depend
    noise : whether the step uses a Gaussian vector for each trained direction, `now.noise()`
    """

    gram: bool
    noise: bool


class Algorithm(Part):
    """Base class of optimisers. A subclass implements one step, `step`, which serves all levels of description.

    `step` receives the context of the step, `now`, and returns the new weights of the students and of the memory by name. It
    combines weights as in R^d: `now.student`, `now["velocity"]`, `now.gradient()`, which is the mean gradient of the batch over
    d, and `now.combine_inputs(c)`, which is the sum of :math:`c_i x_i` over d, for inputs :math:`x_i` and coefficients
    :math:`c_i`. SGD in R^d and the exact chain follow from `step`, and so do the ODE and the SDE if a step changes the weights
    by order 1/d.

    Attributes
    ----------
    memory : initial values of the directions stored beside the students, p for each name: `zero`, or a `copy` of the students
    numbers : initial values of the stored scalars, by name: a number, or (number,) for one per unit
    linear : whether steps are linear in the gradient as d grows (see `needs.is_linear`), for algorithms of this package; for
        other algorithms linearity is found by a probe of the step
    needs : quantities that a step uses beside fields, for a step that cannot be traced; None finds these by tracing the step
    """

    memory: ClassVar[Mapping[str, str]] = {}
    numbers: ClassVar[Mapping[str, float | tuple[float]]] = {}
    linear: ClassVar[bool] = False
    needs: ClassVar[StepRequirements | None] = None

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Return the method that had the given name in earlier versions, with a deprecation warning."""
            return find_renamed_attribute(self, name, renamed=ALGORITHM_MEMBERS)

    @abc.abstractmethod
    def step(self, now: StepContext) -> Mapping[str, Any]:
        """Make one step: return the new weights of "student" and of each array in `memory`, and each new scalar."""

    @property
    @abc.abstractmethod
    def batch(self) -> int:
        """Number of samples in one step of the algorithm, the batch size."""

    @property
    @abc.abstractmethod
    def sphere(self) -> bool:
        """Whether each student is normalised to norm 1 after a step."""

    @property
    @abc.abstractmethod
    def trains_second(self) -> bool:
        """Whether the network's scalars, such as the second layer, are trained."""

    @property
    def trained_scalars(self) -> bool | tuple[str, ...]:
        """Scalars of the network that are trained: True for all, False for none, or their names."""
        return self.trains_second

    def select_trained(self, scalars: Scalars) -> Scalars:
        """Select the trained scalars of the network, or the gradients with respect to these; () if none are trained."""
        return select_scalars(scalars, self.trained_scalars)

    @property
    def ridge(self) -> Float[Array, ""] | float:
        """Strength of the ridge penalty in the objective whose gradient the algorithm follows."""
        return 0.0

    @property
    def lr_sample(self) -> Float[Array, ""] | float:
        """Learning rate of the first layer divided by the batch size, which sets the time unit of the problem's paper."""
        return 1.0

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all arrays of weights that a step updates: "student", then those in `memory`."""
        return (STUDENT, *self.memory)

    @property
    def order(self) -> tuple[str, ...]:
        """Names of all arrays of weights in the order of update: memory that starts at zero, students, copies of students.

        In this order, the update of a group mostly depends on groups before it: the matrix A that multiplies the old directions
        is then lower triangular, which makes the step of the chain cheaper.
        """
        before = [name for name, begins in self.memory.items() if begins == "zero"]
        return (*before, STUDENT, *(name for name in self.memory if name not in before))

    @property
    def limit(self) -> Algorithm:
        """Limit of the algorithm as d grows: the algorithm itself, unless a subclass has another limit."""
        return self

    def at_rates(self, factor: Float[Array, ""]) -> Self:
        """Return a copy of the algorithm with all learning rates multiplied by a factor."""
        raise BadInput(
            f"{_class_name(self)} does not declare which of its numbers are learning rates. Define its method `at_rates`."
        )


class Update(eqx.Module):
    """New value of one array of weights (the students, or stored memory) after a step, as coefficients of weights and inputs.

    A step maps all directions W to AW + CX with inputs X and coefficient matrices A and C.

    Parameters
    ----------
    name : "student", or a name in the algorithm's `memory`
    past : coefficients of the old weights, by name: rows of A
    inputs : coefficients of the inputs, times d: rows of C
    scalars : new trained scalars
    unit : whether each direction is normalised afterwards
    """

    name: str = eqx.field(static=True)
    old_coefficients: dict[str, Any]
    inputs: Float[Array, "p L"]
    scalars: PyTree
    unit: bool = eqx.field(static=True)


def compute_updates(algorithm: Algorithm, now: StepContext) -> tuple[tuple[Update, ...], dict[str, Array]]:
    """Run one step of an algorithm, check its result, and return the update of each array of weights and the new scalars."""
    step, p = try_step(algorithm, now), now.fields_by_name[STUDENT].shape[0]
    wanted = {*now.names, *now.kept}
    if not isinstance(step, Mapping) or set(step) != wanted:
        got = sorted(step) if isinstance(step, Mapping) else type(step).__name__
        raise BadInput(
            f"{_class_name(algorithm)}.step must return {sorted(wanted)}; got {got}. Return a dictionary with these names."
        )
    for name in now.names:
        if not isinstance(step[name], WeightCombination):
            raise BadInput(
                f"{_class_name(algorithm)}.step must return weights as {name!r}; got {type(step[name]).__name__}. "
                "Combine now.student, now.gradient() and now.combine_inputs(...)."
            )
    for name, old in now.kept.items():
        if jnp.shape(step[name]) != jnp.shape(old):
            raise BadInput(
                f"{_class_name(algorithm)}.step must return {name!r} with the shape {jnp.shape(old)}; "
                f"got {jnp.shape(step[name])}. Return one value of that shape."
            )
    return tuple(_as_update(name, step[name], p) for name in now.names), {name: step[name] for name in now.kept}


def try_step(algorithm: Algorithm, now: StepContext) -> Mapping[str, Any]:
    """Call the step of an algorithm, and report an error in it as one sentence with the algorithm's name and line."""
    try:
        return algorithm.step(now)
    except BadInput:
        raise
    except (TypeError, ValueError, LookupError, AttributeError, NameError, ArithmeticError) as reason:
        # the last line in the file of the step is the user's own, below which are calls of libraries
        file = inspect.getfile(type(algorithm).step)
        lines = [frame.lineno for frame in traceback.extract_tb(reason.__traceback__) if frame.filename == file]
        where = f" in line {lines[-1]} of {os.path.basename(file)}" if lines else ""
        raise BadInput(f"the method step of {_class_name(algorithm)} fails{where}: {describe_error(reason)}") from None


def check_memory(algorithm: Algorithm, taken: Collection[str]) -> None:
    """Raise `BadInput` if a name in `memory` or `numbers` is in use in datasets, or has no valid initial value."""
    function(f"{_class_name(algorithm)}.step", algorithm.step)  # raises if it is no function
    for what in ("memory", "numbers"):
        if not isinstance(given := getattr(algorithm, what), Mapping):
            raise BadInput(f"{_class_name(algorithm)}.{what} must be a dictionary by name; got {shorten(given)}. Give a dict.")
    for name in (*algorithm.memory, *algorithm.numbers):
        if not isinstance(name, str) or not name.isidentifier() or name in taken:
            raise BadInput(
                f"{_class_name(algorithm)} cannot store {name!r}: the name is in use, or not an identifier. Give another name."
            )
    for name, begins in algorithm.memory.items():
        if not isinstance(begins, str) or begins not in ("zero", "copy"):
            raise BadInput(
                f"{_class_name(algorithm)}.memory[{name!r}] must be 'zero', or 'copy' of the students; "
                f"got {shorten(begins)}. Give 'zero' or 'copy'."
            )
    for name, value in algorithm.numbers.items():
        check_number(f"{name!r} of {_class_name(algorithm)}", value[0] if isinstance(value, tuple) and value else value)


def _as_update(name: str, weights: WeightCombination, p: int) -> Update:
    """Convert the new value that a step returned for one array of weights to an `Update`."""
    inputs = jnp.zeros((p, weights.now.fixed.shape[1])) if weights.inputs is None else weights.inputs
    return Update(name, weights.old_coefficients, inputs, weights.updated_scalars, weights.is_unit)


def _class_name(algorithm: Algorithm) -> str:
    """Return the name of an algorithm's class, for error messages."""
    return type(algorithm).__name__


def has_lower_triangular_old_coefficients(updates: Sequence[Update]) -> bool:
    r"""Return whether the matrix A in the updates :math:`W \leftarrow AW + CX` of many runs is lower triangular.

    The matrix is lower triangular if no group of directions depends on later groups, nor on itself through a matrix.
    """
    place = {update.name: i for i, update in enumerate(updates)}
    earlier = lambda update, name: (
        place[name] < place[update.name] or (name == update.name and update.old_coefficients[name].ndim < 3)
    )
    return all(earlier(update, name) for update in updates for name in update.old_coefficients)


def multiply_by_old_coefficients(updates: Sequence[Update], X: Float[Array, "..."], axis: int = 0) -> Float[Array, "..."]:
    r"""Multiply directions by the matrix A in the updates :math:`W \leftarrow AW + CX` of the weights W of many runs.

    Parameters
    ----------
    updates : updates of all names, runs last
    X : array with directions on `axis`, in the order of the updates, and runs on the last axis
    """
    parts = jnp.split(X, len(updates), axis) if len(updates) > 1 else [X]
    named = {update.name: part for update, part in zip(updates, parts, strict=True)}
    rows = [
        sum((_multiply_rows(c, named[name], axis) for name, c in update.old_coefficients.items()), jnp.zeros(()))
        for update in updates
    ]
    rows = [jnp.broadcast_to(row, parts[0].shape) for row in rows]  # a name without old weights has a scalar zero
    return jnp.concatenate(rows, axis) if len(rows) > 1 else rows[0]


def _multiply_rows(c: Float[Array, "... runs"], X: Float[Array, "... runs"], axis: int) -> Float[Array, "... runs"]:
    """Multiply each run's directions, on `axis` of X, by the run's coefficient c: a scalar, one per direction, or a matrix."""
    if c.ndim == 1:  # the only axis is that of runs
        return c * X
    rows = jnp.moveaxis(X, axis, 0)
    # axes of length one between those of the coefficient and that of runs, so that they broadcast against the rows
    wide = c.reshape(*c.shape[:-1], *(1 for _ in range(X.ndim - 2)), c.shape[-1])
    return jnp.moveaxis(wide * rows if c.ndim == 2 else (wide * rows[None]).sum(1), 0, axis)


def _as_rates(rates: Any) -> Any:
    """Convert a learning rate, or learning rates by name, to arrays; names with the rate None are left out."""
    if not isinstance(rates, Mapping):
        return as_floats(rates)
    return {name: as_floats(rate) for name, rate in rates.items() if rate is not None} or None


class Descent(Algorithm):
    """Base class of algorithms that follow the gradient of a batch.

    Parameters
    ----------
    lr : learning rate of the first layer
    lr_second : learning rate of the second layer, or of each scalar by name; scalars without a rate stay fixed, as does the
        second layer for None
    ridge : strength of the ridge penalty on both layers
    sphere : whether the weights of each unit are normalised to norm 1 after each step
    batch : b, the number of samples per step, over which the gradient is averaged
    """

    lr: Rate = eqx.field(converter=as_floats)
    lr_second: Rates | None = eqx.field(converter=_as_rates, default=None, kw_only=True)
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

    def gradient_step(self, now: StepContext, at: WeightCombination | None = None) -> WeightCombination:
        """Return the step of gradient descent on loss and ridge penalty, with the gradient at the weights `at`."""
        return self.scale_by_minus_lr(now.gradient(at) + (self.ridge * now.inv_d) * (now.student if at is None else at))

    def scale_by_minus_lr(self, slope: WeightCombination) -> WeightCombination:
        """Multiply directions by minus the learning rate of the first layer, and scalars by minus their learning rates."""
        return slope.times(-self.lr, 0.0 if self.lr_second is None else jax.tree.map(operator.neg, self.lr_second))

    def normalise_on_sphere(self, student: WeightCombination) -> WeightCombination:
        """Return the students, normalised to norm 1 if the algorithm is on the sphere."""
        return student.unit() if self.sphere else student


def delegate_to_base(name: str, doc: str | None = None) -> Any:
    """Create a property of wrapper classes that returns the same property of the wrapped algorithm."""
    return property(lambda wrapper: getattr(wrapper.base, name), doc=doc)


class Wrapper(Algorithm):
    """Base class of algorithms that modify another algorithm, `base`, and take their other properties from `base`."""

    base: Algorithm

    batch = delegate_to_base("batch")
    sphere = delegate_to_base("sphere")
    trains_second = delegate_to_base("trains_second")
    trained_scalars = delegate_to_base("trained_scalars")
    memory = delegate_to_base("memory", "Initial values of the directions that are stored beside the students, by name.")
    numbers = delegate_to_base("numbers", "Initial values of the stored scalars, by name.")
    ridge = delegate_to_base("ridge")
    lr_sample = delegate_to_base("lr_sample")

    @property
    def limit(self) -> Algorithm:
        """Limit of the algorithm as d grows: this wrapper around the limit of its base."""
        base = self.base.limit
        return self if base is self.base else eqx.tree_at(lambda own: own.base, self, base)

    def at_rates(self, factor):
        return eqx.tree_at(lambda own: own.base, self, self.base.at_rates(factor))

    def __check_init__(self) -> None:
        if not isinstance(self.base, Algorithm):
            raise BadInput(
                f"{_class_name(self)} needs an algorithm as its base; got {type(self.base).__name__}. Give, say, "
                f"OnePassSGD(lr=0.1)."
            )
