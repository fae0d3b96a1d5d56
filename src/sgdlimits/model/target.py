"""Targets: labels that are a function of the fields of k fixed directions, plus noise."""

from __future__ import annotations

import abc
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpy.typing import ArrayLike

from sgdlimits.checks import array
from sgdlimits.domain import NotNegativeInTime, RealArray, Teachers, Vector, checked
from sgdlimits.errors import BadInput, check_count, is_traced, shorten
from sgdlimits.model.activation import Activation, as_activation, is_square
from sgdlimits.part import Part, at_start, is_schedule
from sgdlimits.schedule import Time
from sgdlimits.statistics.trees import as_floats
from sgdlimits.text import format_count
from sgdlimits.trial import example_fields, try_function


class Readout(Part):
    """The noiseless label as a function of the fixed fields, shape (k, ...), and of the class; its values have shape (...)."""

    @abc.abstractmethod
    def __call__(self, fixed: Float[Array, "k *batch"], c: Array | int = 0) -> Float[Array, "*batch"]:
        """Return the noiseless labels of inputs of class `c`, given the fields of the inputs along the fixed directions."""

    @property
    def smooth(self) -> bool:
        """Whether quadrature with few nodes is accurate for the readout."""
        return False

    def quadratic(self, teachers: int) -> Float[Array, "k k"] | None:
        """Return the symmetric k-by-k matrix of a readout that is a quadratic form of the fixed fields; None for others."""
        return None


@checked
class CommitteeReadout(Readout):
    r"""A committee (two-layer) teacher, the mean :math:`\frac1k\sum_r a^*_r\, s(\lambda^*_r)` of k units with activation s.

    Unit r has the field :math:`\lambda^*_r`, the scalar product of the input with fixed direction r.

    Parameters
    ----------
    activation : s, by name, as a JAX function or as an `Activation`
    second : second layer :math:`a^*`, shape (k,); ones unless given
    """

    activation: Activation
    second: Float[Array, " k"] | None

    def __init__(self, activation: str | Callable | Activation, second: Vector | None = None) -> None:
        self.activation = as_activation(activation)
        self.second = None if second is None else as_floats(second)

    def __call__(self, fixed, c=0):
        values = self.activation(fixed)
        if self.second is None:
            return values.mean(0)
        return (self.second.reshape(-1, *(1 for _ in fixed.shape[1:])) * values).mean(0)

    def weights(self, teachers: int) -> Float[Array, " k"] | Float[np.ndarray, " k"]:
        """Return the coefficient of each teacher unit, including the factor 1/k."""
        # Without a second layer a NumPy array: a constant of compiled code, not an argument.
        return jnp.asarray(self.second) / teachers if self.second is not None else np.full(teachers, 1 / teachers)

    @property
    def smooth(self):
        return self.activation.smooth

    def quadratic(self, teachers):
        return self.weights(teachers) * np.eye(teachers) if is_square(self.activation) else None


def check_square(name: str, value: Any) -> Any:
    """Return a value as a square matrix, or raise `BadInput` if it is not square."""
    array(ndim=2)(name, value)
    if len(shape := np.shape(value)) == 2 and shape[0] != shape[1]:
        raise BadInput(f"{name} must have as many rows as columns; got shape {shape}. Give a square matrix.")
    return value


@checked
class QuadraticReadout(Readout):
    r"""A quadratic form :math:`\lambda^{*\top} R \lambda^*` of the fixed fields :math:`\lambda^*`, with a k-by-k matrix R."""

    smooth: ClassVar[bool] = True
    R: Annotated[Float[Array, "k k"], check_square] = eqx.field(converter=as_floats)

    if TYPE_CHECKING:  # what the converters take

        def __init__(self, R: ArrayLike) -> None: ...

    def __call__(self, fixed, c=0):
        R = self.R.reshape(*self.R.shape, *(1 for _ in fixed.shape[1:]))
        return (fixed[:, None] * R * fixed[None]).sum((0, 1))

    def quadratic(self, teachers):
        return (self.R + self.R.T) / 2  # only the symmetric part of R enters the quadratic form


class FunctionReadout(Readout):
    """A readout from a user's JAX function of one vector of k fields."""

    fn: Callable = eqx.field(static=True)

    def __call__(self, fixed, c=0):
        if fixed.ndim == 1:
            return self.fn(fixed)
        # The user's function takes one vector: all trailing axes become one, over which it is mapped.
        flat = jax.vmap(self.fn, in_axes=-1)(fixed.reshape(fixed.shape[0], -1))
        return flat.reshape(fixed.shape[1:])


class TimedReadout(Readout):
    """A readout from a user's JAX function of one vector of k fields and of the time, in samples per dimension.

    The attribute `clock` is a schedule that returns the time; the method `at(t)` of a problem replaces it by the number t.
    """

    fn: Callable = eqx.field(static=True)
    clock: Any = eqx.field(default_factory=Time)

    def __call__(self, fixed, c=0):
        if is_schedule(self.clock):
            raise BadInput(f"the readout {shorten(self.fn)} changes with time. Take the problem at one time, problem.at(t).")
        return FunctionReadout(lambda vector: self.fn(vector, self.clock))(fixed, c)


def as_readout(readout: Readout | Callable, teachers: int) -> Readout:
    """Convert a user's function fn(fixed) or fn(fixed, t) to a readout, after a trial on one vector of fields."""
    if isinstance(readout, Readout):
        try_function("the readout", at_start(readout), format_count(teachers, "field"), example_fields(teachers), values=False)
        return readout
    if takes_time(readout):
        try_function(
            "the readout", readout, f"{format_count(teachers, 'field')} and a time", example_fields(teachers), np.asarray(0.0)
        )
        return TimedReadout(readout)
    try_function("the readout", readout, format_count(teachers, "field"), example_fields(teachers))
    return FunctionReadout(readout)


def takes_time(fn: Any) -> bool:
    """Return whether a function of fields takes the time: its second argument has no default value, or is called t."""
    try:
        parameters = list(inspect.signature(fn).parameters.values())
    except (TypeError, ValueError):
        return False
    positional = [each for each in parameters if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
    return len(positional) > 1 and (positional[1].default is inspect.Parameter.empty or positional[1].name == "t")


@checked
class ClassLabels(Readout):
    """A label for each class of the data, independent of the fields; `ClassLabels(range(C))` labels classes by their index.

    >>> ClassLabels([1.0, 0.0])(jnp.zeros((1, 3)), c=jnp.array([0, 1, 1])).tolist()
    [1.0, 0.0, 0.0]
    """

    smooth: ClassVar[bool] = True
    labels: Float[Array, " classes"]

    def __init__(self, labels: Vector) -> None:
        self.labels = as_floats(list(labels) if isinstance(labels, range) else labels)

    def __call__(self, fixed, c=0):
        return jnp.broadcast_to(jnp.asarray(self.labels)[c], fixed.shape[1:])


@checked
class Target(Part):
    r"""The labels: a function of the fields of k fixed directions, plus Gaussian noise.

    The directions have the Gram matrix P, and with the fields :math:`\lambda^*` along them the label is
    :math:`y = \text{readout}(\lambda^*) + \sqrt{\text{noise}}\, z`.

    Parameters
    ----------
    readout : a `Readout`, or a JAX function of one vector of k fields that returns one number; a function readout(fixed, t) is
        given the time as well, in samples per dimension
    teachers : k, the number of fixed directions; 1, or as many as the Gram matrix has, unless given
    noise : variance of the additive label noise
    gram : P, shape (k, k), positive definite; the identity unless given. For inputs with B blocks of variances it may be
        given within each, shape (B, k, k), positive semi-definite; otherwise each block has its share of P

    >>> target = Target(lambda fixed: fixed[0] * fixed[1], teachers=2, noise=0.1)
    >>> float(target.label(jnp.array([2.0, 3.0]), z=0.0, c=0))
    6.0
    >>> turning = Target(lambda fixed, t: jnp.cos(t) * fixed[0] + jnp.sin(t) * fixed[1], teachers=2)
    >>> float(turning.at(0.0).label(jnp.array([2.0, 3.0]), z=0.0, c=0))
    2.0
    """

    readout: Readout
    gram: Float[Array, "*blocks k k"]
    noise: Float[Array, ""]

    def __init__(
        self,
        readout: Readout | Callable,
        teachers: Teachers | None = None,
        *,
        noise: NotNegativeInTime = 0.0,
        gram: RealArray | None = None,
    ) -> None:
        if gram is not None and np.ndim(gram) not in (2, 3):
            raise BadInput(f"gram must be a matrix, or one for each block; got shape {np.shape(gram)}. Give a k-by-k matrix.")
        teachers = check_count("teachers", (1 if gram is None else np.shape(gram)[-1]) if teachers is None else teachers)
        self.gram = as_floats(np.eye(teachers) if gram is None else gram)
        self.noise = as_floats(noise)
        _check_gram(self.gram, teachers)
        self.readout = as_readout(readout, teachers)

    @property
    def teachers(self) -> int:
        """Number of fixed directions, k, on which the label depends."""
        return self.gram.shape[-1]

    def label(self, fixed: Float[Array, "k *batch"], z: Float[Array, "*batch"], c: Array) -> Float[Array, "*batch"]:
        """Evaluate the label of inputs with the given fixed fields, standard normal label noise `z` and class `c`."""
        return self.readout(fixed, c) + jnp.sqrt(self.noise) * z


def _check_gram(gram: Float[Array, "k k"], teachers: int) -> None:
    """Raise `BadInput` unless a Gram matrix has shape (k, k) and, if its values are known, is positive definite."""
    if gram.shape[-2:] != (teachers, teachers):
        raise BadInput(f"gram must have shape ({teachers}, {teachers}); got {gram.shape}. Give the k-by-k Gram matrix.")
    if is_traced(gram):
        return
    # Linearly dependent directions would make the Cholesky factor, the frame, singular.
    if gram.ndim == 3:
        values = np.linalg.eigvalsh(np.asarray(gram))
        if not np.allclose(gram, np.swapaxes(gram, 1, 2)) or (values[:, 0] < -1e-12 * np.abs(gram).max()).any():
            raise BadInput(
                f"gram must be positive semi-definite in each block; got {np.asarray(gram).tolist()}. "
                "Give Gram matrices without negative eigenvalues."
            )
    P = np.asarray(gram) if gram.ndim == 2 else np.asarray(gram).sum(0)
    if not np.allclose(P, P.T) or np.linalg.eigvalsh(P)[0] <= 1e-12 * np.abs(P).max():
        raise BadInput(
            f"gram must be symmetric and positive definite; got {P.tolist()}. "
            "Keep independent directions only and express the others in the readout."
        )
