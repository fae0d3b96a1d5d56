r"""One step of an algorithm, written as in R^d, and what it comes to without R^d.

Every algorithm that does not single out coordinates makes of its directions W (p students, and p for each thing it remembers)
and of the L vectors X of one step

.. math:: W \leftarrow AW + CX,

with A and C functions of the fields :math:`F = WX^\top`, of the Gram matrices :math:`WW^\top` and :math:`K = XX^\top`, of
scalars and of time. `Weights` are such combinations: rules add them up as if they were vectors, and A and C are read off at the
end. Nothing here has a length d, and nothing has an axis of runs.

The natural unit of a step is 1/d. C is kept as :math:`C = \hat C/d` and K as :math:`\hat K = K/d`, so that all numbers stay of
order one as d grows, and 1/d itself may be zero.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, PyTree

from sgdlimits.errors import BadInput
from sgdlimits.expectation.gaussian.units import safe_root
from sgdlimits.statistics.overlaps import STUDENT
from sgdlimits.statistics.trees import add

Coefficient = Any
"""One number, a number for each row (p,), or a matrix (p, p)."""
Samples = Callable[["Weights"], tuple[Float[Array, "p b"], PyTree]]
"""The gradients of the samples at given weights: with respect to their fields, and to the scalars."""


class Weights:
    r"""p directions as a combination of those at the beginning of a step and of its inputs, and the scalars beside them.

    Parameters
    ----------
    now : the step
    past : for each name of `Now.names` its coefficient: a number, one a row, or a matrix
    inputs : :math:`\hat C`, shape (p, L), or None for zero
    scalars : a pytree like the trained scalars, or () where none are trained
    slopes : what is to be added to the scalars, divided by 1/d; None for zero
    unit : whether each direction is then scaled to length 1
    """

    def __init__(self, now: Now, past: Mapping[str, Coefficient], inputs=None, scalars=(), slopes=None, unit=False) -> None:
        self.now, self.past, self.inputs = now, dict(past), inputs
        self.scalars, self.slopes, self.is_unit = scalars, slopes, unit

    def __add__(self, other: Weights) -> Weights:
        if not isinstance(other, Weights):
            raise BadInput(f"weights can be added to weights only; got {type(other).__name__}. Use now.along(...).")
        a, b = self._scaled(), other._scaled()
        names = [name for name in self.now.names if name in a.past or name in b.past]
        past = {name: _plus(a.past.get(name), b.past.get(name)) for name in names}
        return Weights(self.now, past, _sum(a.inputs, b.inputs), _sum(a.scalars, b.scalars), _sum(a.slopes, b.slopes))

    def __mul__(self, factor: Array | float) -> Weights:
        return self.times(factor, factor)

    __rmul__ = __mul__

    def __neg__(self) -> Weights:
        return self * -1.0

    def __sub__(self, other: Weights) -> Weights:
        return self + -other

    def times(self, directions: Array | float, scalars: Any) -> Weights:
        """The directions by one factor, or by one for each row, and the scalars by another, or each by its own, by name."""
        now, p = self._scaled(), self.now.fields_of[STUDENT].shape[0]
        if jnp.shape(directions) not in {(), (p,), (p, p)}:
            raise BadInput(f"weights of {p} units were multiplied by shape {jnp.shape(directions)}. Give a number.")
        past = {name: _product(directions, coefficient) for name, coefficient in now.past.items()}
        inputs = None if now.inputs is None else apply(directions, now.inputs)
        each = lambda tree: {name: scalars[name] * tree[name] for name in tree}
        all_ = lambda tree: jax.tree.map(lambda leaf: scalars * leaf, tree)
        by = lambda tree: None if tree is None else (each if isinstance(scalars, dict) else all_)(tree)
        return Weights(self.now, past, inputs, by(now.scalars), by(now.slopes))

    def mixed(self, matrix: Float[Array, "p p"]) -> Weights:
        """The directions multiplied by a matrix from the left; the scalars stay."""
        return self.times(matrix, 1.0)

    def unit(self) -> Weights:
        """Each direction scaled to length 1."""
        return Weights(self.now, self.past, self.inputs, self.scalars, self.slopes, unit=True)

    @property
    def numbers(self) -> PyTree:
        """The scalars, with what was added to them."""
        return self.scalars if self.slopes is None else add(self.scalars, self.slopes, self.now.inv_d)

    @property
    def fields(self) -> Float[Array, "p L"]:
        """The products with the inputs."""
        w, now = self._scaled(), self.now
        moved = jnp.zeros(()) if w.inputs is None else _dot(w.inputs, now.inputs_gram)
        return sum((apply(coefficient, now.fields_of[name]) for name, coefficient in w.past.items()), moved)

    def gram(self) -> Float[Array, "p p"]:
        """The products of the directions with each other."""
        inner = self._past_gram()
        return inner if self.inputs is None else inner + self.now.inv_d * self._moved()

    @property
    def size(self) -> Float[Array, ""]:
        r""":math:`\sqrt d` times the length of all directions and scalars together, for what is of order 1/d: a gradient."""
        square = jnp.trace(self.spread())
        if self.slopes is not None:
            square += self.now.inv_d * sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(self.slopes))
        return safe_root(square)

    def spread(self) -> Float[Array, "p p"]:
        """Compute d times `gram`, for what is of order 1/d."""
        return self._moved() + (self._past_gram() / self.now.inv_d if self.past else 0.0)

    def orthogonal(self) -> Weights:
        r"""The nearest orthonormal directions over the root of d: :math:`(VV^\top)^{-1/2}V/\sqrt d`."""
        return self.mixed(inverse_root(self.spread()))

    def _past_gram(self) -> Float[Array, "p p"]:
        w = self._scaled()
        product = lambda one, other: apply(w.past[other], apply(w.past[one], self.now.gram_of(one, other)).T).T
        return sum((product(one, other) for one in w.past for other in w.past), jnp.zeros(()))

    def _moved(self) -> Float[Array, "p p"]:
        """Compute d times what the inputs contribute to the Gram matrix."""
        w = self._scaled()
        fields = sum((apply(c, self.now.fields_of[name]) for name, c in w.past.items()), jnp.zeros_like(w.inputs))
        cross = _dot(fields, w.inputs.T)
        return cross + cross.T + _dot(_dot(w.inputs, self.now.inputs_gram), w.inputs.T)

    def _scaled(self) -> Weights:
        """The same without a promise to be scaled: that needs the lengths, hence the inputs' Gram matrix."""
        if not self.is_unit:
            return self
        plain = Weights(self.now, self.past, self.inputs, self.scalars, self.slopes)
        return plain.times(1 / jnp.sqrt(jnp.diagonal(plain.gram())), 1.0)


class Now:
    r"""One step as an algorithm sees it, for one run.

    Parameters
    ----------
    per : 1/d
    t : the time at which the step is made, or a function that gives it
    fields : of all directions, by name, shape (p, L) each; of the L inputs the first are the samples of the batch
    fixed : fields of the fixed directions, shape (k, L)
    slope : function of the fields (p, b) of the samples and of scalars: gradients (p, b), and those of the scalars (..., b)
    batch : b, how many of the inputs are samples; the others are noise of the algorithm's own
    scalars : of each name, those that are trained
    kept : numbers that the algorithm remembers, by name
    gram_of : function of two names that gives the Gram matrix of their directions
    inputs_gram : function that gives :math:`\hat K`; None where the algorithm has not declared that it uses it
    """

    def __init__(self, per, t, fields, fixed, slope, batch, scalars, kept, gram_of, inputs_gram=None) -> None:
        self.per, self._t, self.fields_of, self.fixed = per, t, fields, fixed
        self.batch, self.kept, self.gram_of = batch, kept, gram_of
        self._inputs_gram, self._still = inputs_gram, jax.tree.map(jnp.zeros_like, scalars[STUDENT])
        self.weights = {name: Weights(self, {name: 1.0}, None, scalars[name]) for name in fields}
        self.more: Weights | None = None
        self.samples: Samples = lambda at: slope(at.fields[:, :batch], at.numbers)

    @property
    def t(self) -> Float[Array, ""]:
        """The time at which the step is made, in samples per dimension."""
        return self._t() if callable(self._t) else self._t

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.fields_of)

    def __getitem__(self, name: str) -> Any:
        """The weights or the number that is remembered under a name."""
        if name not in self.weights and name not in self.kept:
            known = ", ".join([*self.weights, *self.kept])
            raise BadInput(f"the algorithm asks for {name!r} and remembers {known}. Declare {name!r} in its `memory`.")
        return self.weights[name] if name in self.weights else self.kept[name]

    @property
    def student(self) -> Weights:
        """The trained weights."""
        return self.weights[STUDENT]

    @property
    def inputs_gram(self) -> Float[Array, "L L"]:
        if self._inputs_gram is None:
            raise BadInput("the algorithm uses the lengths of inputs and does not say so. Give its class uses_gram = True.")
        return self._inputs_gram()

    def gradient(self, at: Weights | None = None) -> Weights:
        """The mean over the batch of the gradient of the loss, over d, at the students or elsewhere."""
        slope = self.mean(*self.samples(self.student if at is None else at))
        return slope if self.more is None else slope + self.more

    def mean(self, G: Float[Array, "p b"], slopes: PyTree) -> Weights:
        """The mean over the batch of gradients, over d."""
        return self.along(G / self.batch, jax.tree.map(lambda leaf: leaf.mean(-1), slopes))

    def along(self, coefficients: Float[Array, "p b"], slopes: PyTree = None) -> Weights:
        """The sum over the samples of coefficients times inputs, over d; and slopes of the scalars."""
        p, b = self.fields_of[STUDENT].shape[0], self.batch
        if jnp.shape(coefficients) != (p, b):
            raise BadInput(f"along takes one number a unit and sample, ({p}, {b}); got {jnp.shape(coefficients)}. Give such.")
        more = self.fixed.shape[1] - b
        inputs = coefficients if more == 0 else jnp.pad(coefficients, ((0, 0), (0, more)))
        return Weights(self, {}, inputs, self._still, slopes)

    def noise(self) -> Weights:
        """A standard normal vector for each direction, over d: the inputs beyond the samples."""
        inputs, p = self.fixed.shape[1], self.fields_of[STUDENT].shape[0]
        if inputs == self.batch:
            raise BadInput("the algorithm asks for noise and does not say so. Give its class uses_noise = True.")
        return Weights(self, {}, jnp.pad(jnp.eye(p), ((0, 0), (inputs - p, 0))), self._still)

    def steered(self, samples: Samples, more: Weights | None = None) -> Now:
        """The same step with other gradients of the samples, as a function of weights, and with more added to their mean."""
        other = copy(self)
        other.samples, other.more = samples, _sum(self.more, more)
        return other

    def after(self, step: Mapping[str, Any]) -> Now:
        """The same inputs once more, after a step; what the step leaves out, for an algorithm around it, stays."""
        other = copy(self)
        other.weights = {name: step.get(name, old) for name, old in self.weights.items()}
        other.kept = {name: step.get(name, old) for name, old in self.kept.items()}
        return other


def inverse_root(S: Float[Array, "p p"]) -> Float[Array, "p p"]:
    """The inverse of the symmetric root of a positive semi-definite matrix, on its range."""
    values, vectors = jnp.linalg.eigh(S)
    alive = values > 1e-13 * values[-1]
    return (vectors * jnp.where(alive, lax.rsqrt(jnp.where(alive, values, 1.0)), 0.0)) @ vectors.T


def apply(coefficient: Coefficient, rows: Float[Array, "p n"]) -> Float[Array, "p n"]:
    """A number, a number for each row or a matrix times the rows."""
    rank = jnp.ndim(coefficient)
    return coefficient * rows if rank == 0 else coefficient[:, None] * rows if rank == 1 else _dot(coefficient, rows)


def _product(left: Coefficient, right: Coefficient) -> Coefficient:
    if jnp.ndim(left) < 2 and jnp.ndim(right) < 2:
        return left * right
    right = right if jnp.ndim(right) == 2 else right * jnp.eye(left.shape[1])
    return apply(left, right)


def _plus(left: Coefficient | None, right: Coefficient | None) -> Coefficient:
    if left is None or right is None:
        return left if right is None else right
    if jnp.ndim(left) != jnp.ndim(right) and 2 in (jnp.ndim(left), jnp.ndim(right)):
        one = jnp.eye(len(left if jnp.ndim(left) == 2 else right))
        left, right = (c if jnp.ndim(c) == 2 else c * one for c in (left, right))
    return left + right


def _dot(left: Float[Array, "n m"], right: Float[Array, "m l"]) -> Float[Array, "n l"]:
    """A small matrix product as products and sums, which compilers fuse with what is around them."""
    return (left[:, :, None] * right[None]).sum(1)


def _sum(left: Any, right: Any) -> Any:
    """The sum of two arrays, trees or weights, where None is zero."""
    if left is None or right is None:
        return right if left is None else left
    return left + right if isinstance(left, Weights) else add(left, right)
