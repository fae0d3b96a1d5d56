"""Activations: functions that a unit applies to its field, the scalar product of its weight vector with the input."""

from __future__ import annotations

import abc
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Annotated

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpy.polynomial import hermite_e

from sgdlimits.checks import integer
from sgdlimits.domain import Positive, Vector, checked
from sgdlimits.errors import BadInput, shorten
from sgdlimits.part import Part
from sgdlimits.trial import example_fields, try_function

MAX_HERMITE_DEGREE = 12
"""Highest degree of a Hermite polynomial that can be given by its name, such as he12."""
MAX_SMOOTH_SCALE = 10.0
"""Largest scale s for which erf(s x) counts as smooth; for larger scales, quadrature with few nodes sees a jump at x = 0."""
FIELD_GRID = np.linspace(-30, 30, 20_001)
"""Grid of fields on which the largest derivatives of an activation are searched for."""


class Activation(Part):
    """Function that each unit applies to its field, the scalar product of its weights with the input, entry by entry."""

    @abc.abstractmethod
    def __call__(self, fields: Float[Array, "..."]) -> Float[Array, "..."]:
        """Evaluate the activation at each entry of an array of fields."""

    @property
    def smooth(self) -> bool:
        """Whether quadrature with few nodes is accurate for the activation and its first two derivatives."""
        return True

    @property
    def derivative_bounds(self) -> tuple[float, float] | None:
        """Upper bounds on the absolute first and second derivative (away from a kink); None if they are unbounded."""
        return _scan_derivatives(self) if self.smooth and not jax.tree.leaves(self) else None

    def as_argument(self):
        """Return the form in which the activation is printed as an argument: its name, its function or its constructor call."""
        name = next((name for name, known in ACTIVATIONS.items() if known == self), "")
        return repr(name) if name else getattr(getattr(self, "fn", None), "__qualname__", "") or repr(self)

    @property
    def kinked(self) -> bool:
        """Whether the activation is known to be linear on each side of zero with a kink at zero."""
        return False


class FunctionActivation(Activation):
    """Activation given by a user's JAX function.

    Parameters
    ----------
    fn : a function of arrays that acts on each entry
    smooth : whether quadrature with few nodes is accurate for fn; None tests this by comparing two quadrature rules

    >>> FunctionActivation(jnp.tanh).smooth, FunctionActivation(jnp.abs).smooth
    (True, False)
    """

    fn: Callable = eqx.field(static=True)
    known_smooth: bool = eqx.field(static=True)

    def __init__(self, fn: Callable, smooth: bool | None = None) -> None:
        self.fn = fn
        self.known_smooth = is_probably_smooth(fn) if smooth is None else smooth

    @property
    def smooth(self):
        return self.known_smooth

    def __call__(self, fields):
        return self.fn(fields)


@checked
class Erf(Activation):
    r"""The error function :math:`\mathrm{erf}(\text{scale}\, x)` as activation; Saad and Solla use the scale :math:`1/\sqrt2`.

    >>> round(float(Erf()(1.0)), 4), round(float(Erf(1.0)(1.0)), 4)
    (0.6827, 0.8427)
    """

    scale: Positive = eqx.field(static=True, converter=float, default=0.5**0.5)

    @property
    def smooth(self):
        return self.scale <= MAX_SMOOTH_SCALE

    def __call__(self, fields):
        return jax.scipy.special.erf(self.scale * jnp.asarray(fields))


@checked
class Polynomial(Activation):
    """A polynomial activation, given by its coefficients in ascending order: `Polynomial([0, 0, 1])` is the square.

    >>> float(Polynomial([1, 0, 2])(3.0))
    19.0
    """

    coefficients: tuple[float, ...] = eqx.field(static=True)

    def __init__(self, coefficients: Vector) -> None:
        values = np.atleast_1d(np.asarray(coefficients, float))
        if values.ndim != 1 or not np.isfinite(values).all() or not values.any():
            raise BadInput(
                f"a polynomial needs finite coefficients, not all zero; got {shorten(coefficients)}. Give, say, [0, 0, 1]."
            )
        self.coefficients = tuple(np.trim_zeros(values, "b").tolist())  # so that equal polynomials compare equal

    @property
    def degree(self) -> int:
        """Degree of the polynomial activation."""
        return len(self.coefficients) - 1

    def __call__(self, fields):
        fields = jnp.asarray(fields)
        value = self.coefficients[-1] * jnp.ones_like(fields)
        for coefficient in self.coefficients[-2::-1]:
            # A zero coefficient is not added: compilers cannot drop the addition, which changes the sign of a zero.
            value = value * fields + coefficient if coefficient else value * fields
        return value


@checked
class PiecewiseLinear(Activation):
    """A piecewise linear activation with slope `left` below zero and `right` above, such as relu or leaky relu.

    >>> leaky = PiecewiseLinear(left=0.1)                 # PiecewiseLinear() is relu
    >>> float(leaky(-2.0)), float(leaky(3.0))
    (-0.2, 3.0)
    """

    left: float = eqx.field(static=True, converter=float, default=0.0)
    right: float = eqx.field(static=True, converter=float, default=1.0)

    @property
    def smooth(self):
        return self.left == self.right

    @property
    def kinked(self):
        return self.left != self.right

    @property
    def derivative_bounds(self):
        return max(abs(self.left), abs(self.right)), 0.0

    def __call__(self, fields):
        fields = jnp.asarray(fields)
        # A selected slope times the field: the derivative at zero is `left`, as in SGD.
        return jnp.where(fields > 0, self.right, self.left) * fields


@checked
def hermite(n: Annotated[int, integer(below=151)]) -> Polynomial:
    """Return He_n, the Hermite polynomial of the standard normal law with leading coefficient 1.

    >>> hermite(3).coefficients
    (0.0, -3.0, 0.0, 1.0)
    """
    return Polynomial(hermite_e.herme2poly([0] * n + [1]))


@lru_cache(maxsize=64)
def _scan_derivatives(unit: Activation) -> tuple[float, float] | None:
    """Bound the absolute first and second derivative by evaluating them on a grid, with a margin of 10 %.

    Derivatives whose largest value lies in the outer half of the grid count as unbounded, and the result is None.
    """
    # The bounds are static, so they are computed now even while the caller is being traced.
    derivatives = (jax.grad(unit), jax.grad(jax.grad(unit)))
    with jax.ensure_compile_time_eval():
        values = [np.abs(np.asarray(jax.jit(jax.vmap(f))(FIELD_GRID))) for f in derivatives]
    near, far = abs(FIELD_GRID) < FIELD_GRID[-1] / 2, abs(FIELD_GRID) >= FIELD_GRID[-1] / 2
    if not all(np.isfinite(f).all() and f[far].max() <= (1 + 1e-3) * f[near].max() for f in values):
        return None
    first, second = (1.1 * float(f.max()) for f in values)
    return first, second


def sigmoid(field):
    """Evaluate the logistic function 1/(1 + e^-x), as an activation."""
    return jax.nn.sigmoid(field)


def tanh(field):
    """Evaluate the hyperbolic tangent, as an activation."""
    return jnp.tanh(field)


ACTIVATIONS: dict[str, Activation] = {
    "erf": Erf(),
    "erf_plain": Erf(1.0),
    "relu": PiecewiseLinear(),
    "abs": PiecewiseLinear(-1.0),
    "tanh": FunctionActivation(tanh, smooth=True),
    "sigmoid": FunctionActivation(sigmoid, smooth=True),
    "linear": Polynomial([0, 1]),
    "square": Polynomial([0, 0, 1]),
    **{f"he{n}": hermite(n) for n in range(1, MAX_HERMITE_DEGREE + 1)},
}

SIGN_ACTIVATION = Erf(1e6)
"""Activation erf(1e6 x), which stands for the sign in labels; its expectations with erf units are known in closed form.

These expectations differ from those of the sign by about 1e-6, the inverse of the scale; at much larger scales derivatives
would be lost in rounding. The function has no useful slope as the activation of a trained unit.
"""

NAMED_FUNCTIONS = {
    jnp.abs: "abs",
    jnp.absolute: "abs",
    jnp.square: "square",
    jnp.tanh: "tanh",
    jax.nn.relu: "relu",
    jax.nn.sigmoid: "sigmoid",
}
"""Dictionary from functions of JAX to the names of the equal activations of this module, which replace them."""


def as_activation(activation: str | Callable | Activation) -> Activation:
    """Convert a name or a user's elementwise JAX function to an `Activation`.

    The names are erf (for erf(x/sqrt 2), as in Saad and Solla), erf_plain (for erf x), relu, abs, tanh, sigmoid, linear,
    square, and he1, he2, ... for Hermite polynomials.

    >>> import jax.numpy as jnp
    >>> float(as_activation("he2")(3.0)), float(as_activation(jnp.abs)(-2.0))
    (8.0, 2.0)
    """
    if isinstance(activation, Activation):
        return activation
    if isinstance(activation, str):
        if activation not in ACTIVATIONS:
            names = [name for name in ACTIVATIONS if not name.startswith("he")]
            known = f"{', '.join(names)}, he1 to he{MAX_HERMITE_DEGREE}"
            raise BadInput(f"unknown activation {activation!r}. Give one of {known}, or a JAX function.")
        return ACTIVATIONS[activation]
    if not callable(activation):
        raise BadInput(f"activation must be a name or a function; got {activation!r}. Give, for instance, 'relu' or jnp.abs.")
    if activation in NAMED_FUNCTIONS:
        return ACTIVATIONS[NAMED_FUNCTIONS[activation]]
    name = f"activation {shorten(activation)}"
    shape = getattr(
        try_function(name, activation, "an array of numbers", example_fields(6).reshape(3, 2), shape=None),
        "shape",
        "several arrays",
    )
    if shape != (3, 2):
        raise BadInput(f"{name} maps an array of shape (3, 2) to shape {shape}. Give a function that acts entry by entry.")
    return FunctionActivation(activation)


def is_probably_smooth(fn: Callable, tolerance: float = 1e-4) -> bool:
    """Return whether two trapezoidal rules agree to `tolerance` on the N(0, 1) means of fn, its slope, and both squared."""
    # Not symmetric about zero, where the errors of odd functions such as the sign would cancel.
    lines = [np.linspace(-6.3, 6.1, nodes) for nodes in (24, 38)]
    values = np.asarray(_value_and_slope(fn, np.concatenate(lines)))
    if not np.isfinite(values).all():
        at = np.concatenate(lines)[~np.isfinite(values).all(0)][0]
        raise BadInput(f"{shorten(fn)} or its slope is not finite at {at:.3g}. Make both finite for every real number.")
    means = []
    for x, here in zip(lines, np.split(values, [lines[0].size], axis=1), strict=True):
        weights = np.exp(-(x**2) / 2) / np.exp(-(x**2) / 2).sum()
        means.append([(value**power * weights).sum() for value in here for power in (1, 2)])
    # Both rules are exponentially accurate for smooth functions, and off by a power of the step at a kink or jump.
    few, many = np.asarray(means)
    return bool(np.abs(few - many).max() <= tolerance * np.abs(many).max())


@partial(jax.jit, static_argnums=0)
def _value_and_slope(fn: Callable, x: Float[Array, " n"]) -> Float[Array, "2 n"]:
    """Return the values of an elementwise function and of its derivative."""
    return jnp.stack([fn(x), jax.vmap(jax.grad(lambda x: fn(x[None])[0]))(x)])


def is_square(activation: Activation) -> bool:
    """Return whether an activation is the square, x^2."""
    return isinstance(activation, Polynomial) and activation.coefficients == (0.0, 0.0, 1.0)
