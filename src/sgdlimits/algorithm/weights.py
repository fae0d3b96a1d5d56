r"""Weights as linear combinations of old weights and inputs, with coefficients computed by an algorithm's step.

Every algorithm that does not single out coordinates maps its directions W (p students, and p for each name in its memory) and
the L vectors X of one step to

.. math:: W \leftarrow AW + CX,

with A and C functions of the fields :math:`F = WX^\top`, of the Gram matrices :math:`WW^\top` and :math:`K = XX^\top`, of
scalars and of time. A `WeightCombination` is such a map: an algorithm combines them as if they were vectors, and A and C are
the coefficients of the result. No array here has length d, and none has an axis of runs.

The natural unit of a step is 1/d. C is stored as :math:`\hat C = dC` and K as :math:`\hat K = K/d`, so that all entries stay of
order one as d grows, and 1/d itself may be zero.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, PyTree

from sgdlimits.errors import BadInput
from sgdlimits.expectation.gaussian.units import safe_root
from sgdlimits.renamed import STEP_MEMBERS, find_renamed_attribute
from sgdlimits.statistics.overlaps import STUDENT
from sgdlimits.statistics.trees import add

Coefficient = Any
"""Type of a coefficient of p directions: a number, a number for each row (p,), or a matrix (p, p)."""
SampleGradients = Callable[["WeightCombination"], tuple[Float[Array, "p b"], PyTree]]
"""Type of a function that returns the gradients of the samples at given weights, for the fields and for the scalars."""


class WeightCombination:
    r"""Weights of p units as a linear combination of the weights before a step and of its inputs, with trained scalars.

    Parameters
    ----------
    now : context of the step
    past : coefficient of the old weights of each name of `StepContext.names`: a number, a number for each row, or a matrix
    inputs : d times the coefficients of the L inputs, shape (p, L); None for zero
    scalars : pytree like the trained scalars, or () if none are trained
    slopes : d times a change to be added to the scalars; None for zero
    unit : whether each direction is normalised to length 1 afterwards
    """

    def __init__(
        self, now: StepContext, past: Mapping[str, Coefficient], inputs=None, scalars=(), slopes=None, unit=False
    ) -> None:
        self.now, self.old_coefficients, self.inputs = now, dict(past), inputs
        self.scalars, self.slopes, self.is_unit = scalars, slopes, unit

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Return the attribute that had the given name in earlier versions, with a deprecation warning."""
            return find_renamed_attribute(self, name, renamed=STEP_MEMBERS)

    def __add__(self, other: WeightCombination) -> WeightCombination:
        if not isinstance(other, WeightCombination):
            raise BadInput(
                f"cannot add {type(other).__name__} to weights. Add now.combine_inputs(coefficients), or other weights."
            )
        a, b = self._normalise(), other._normalise()  # a sum is not normalised, so its terms must be
        names = [name for name in self.now.names if name in a.old_coefficients or name in b.old_coefficients]
        past = {name: _add_coefficients(a.old_coefficients.get(name), b.old_coefficients.get(name)) for name in names}
        return WeightCombination(
            self.now,
            past,
            _add_or_none(a.inputs, b.inputs),
            _add_or_none(a.scalars, b.scalars),
            _add_or_none(a.slopes, b.slopes),
        )

    def __mul__(self, factor: Array | float) -> WeightCombination:
        return self.times(factor, factor)

    __rmul__ = __mul__

    def __neg__(self) -> WeightCombination:
        return self * -1.0

    def __sub__(self, other: WeightCombination) -> WeightCombination:
        return self + -other

    def times(self, directions: Array | float, scalars: Any) -> WeightCombination:
        """Multiply the directions and the trained scalars by different factors.

        Parameters
        ----------
        directions : a number, a number for each row, or a matrix
        scalars : a number, or a number for each scalar by name
        """
        now, p = self._normalise(), self.now.fields_by_name[STUDENT].shape[0]
        if jnp.shape(directions) not in {(), (p,), (p, p)}:
            raise BadInput(
                f"the weights of {p} units cannot be multiplied by an array of shape {jnp.shape(directions)}. "
                "Give a number, one number for each unit, or a p-by-p matrix."
            )
        past = {name: _compose_coefficients(directions, coefficient) for name, coefficient in now.old_coefficients.items()}
        inputs = None if now.inputs is None else apply_coefficient(directions, now.inputs)

        def scale(tree: PyTree) -> PyTree:
            """Multiply trained scalars by the factor `scalars`; if this is a dictionary, each by the factor of its name."""
            if tree is None:
                return None
            if isinstance(scalars, dict):
                return {name: scalars[name] * tree[name] for name in tree}
            return jax.tree.map(lambda leaf: scalars * leaf, tree)

        return WeightCombination(self.now, past, inputs, scale(now.scalars), scale(now.slopes))

    def left_multiply(self, matrix: Float[Array, "p p"]) -> WeightCombination:
        """Multiply the p directions by a matrix from the left; the trained scalars do not change."""
        return self.times(matrix, 1.0)

    def unit(self) -> WeightCombination:
        """Return the weights with each direction normalised to length 1."""
        return WeightCombination(self.now, self.old_coefficients, self.inputs, self.scalars, self.slopes, unit=True)

    @property
    def updated_scalars(self) -> PyTree:
        """The trained scalars after the step: their values plus the accumulated change `slopes`, divided by d."""
        return self.scalars if self.slopes is None else add(self.scalars, self.slopes, self.now.inv_d)

    @property
    def fields(self) -> Float[Array, "p L"]:
        """Scalar products of the directions with the inputs of the step."""
        w, now = self._normalise(), self.now
        moved = jnp.zeros(()) if w.inputs is None else _small_matmul(w.inputs, now.inputs_gram)
        return sum(
            (apply_coefficient(coefficient, now.fields_by_name[name]) for name, coefficient in w.old_coefficients.items()),
            moved,
        )

    def gram(self) -> Float[Array, "p p"]:
        """Return the Gram matrix of the weights, whose p rows are the directions of the p units."""
        inner = self._past_gram()
        return inner if self.inputs is None else inner + self.now.inv_d * self._inputs_gram_part()

    @property
    def size(self) -> Float[Array, ""]:
        r"""Norm of all directions and scalars together, times :math:`\sqrt d`, which is of order one for a gradient."""
        square = jnp.trace(self.scaled_gram())
        if self.slopes is not None:
            square += self.now.inv_d * sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(self.slopes))
        return safe_root(square)

    def scaled_gram(self) -> Float[Array, "p p"]:
        """Return d times the Gram matrix of the directions, which is of order one for a gradient."""
        return self._inputs_gram_part() + (self._past_gram() / self.now.inv_d if self.old_coefficients else 0.0)

    def orthogonalise(self) -> WeightCombination:
        r"""Return the polar factor :math:`(VV^\top)^{-1/2}V/\sqrt d` of the weights V: the nearest orthonormal rows."""
        return self.left_multiply(inverse_square_root(self.scaled_gram()))

    def _past_gram(self) -> Float[Array, "p p"]:
        """Return the Gram matrix of the combination of directions before the step, without the inputs."""
        w = self._normalise()
        product = lambda one, other: (
            apply_coefficient(
                w.old_coefficients[other], apply_coefficient(w.old_coefficients[one], self.now.gram_of(one, other)).T
            ).T
        )
        return sum((product(one, other) for one in w.old_coefficients for other in w.old_coefficients), jnp.zeros(()))

    def _inputs_gram_part(self) -> Float[Array, "p p"]:
        """Return d times the contribution of the inputs to the Gram matrix of the directions."""
        w = self._normalise()
        fields = sum(
            (apply_coefficient(c, self.now.fields_by_name[name]) for name, c in w.old_coefficients.items()),
            jnp.zeros_like(w.inputs),
        )
        cross = _small_matmul(fields, w.inputs.T)
        return cross + cross.T + _small_matmul(_small_matmul(w.inputs, self.now.inputs_gram), w.inputs.T)

    def _normalise(self) -> WeightCombination:
        """Return the weights with a pending normalisation carried out, which needs the Gram matrix of the inputs.

        If a step only returns normalised weights, the level normalises them without this Gram matrix.
        """
        if not self.is_unit:
            return self
        plain = WeightCombination(self.now, self.old_coefficients, self.inputs, self.scalars, self.slopes)
        return plain.times(1 / jnp.sqrt(jnp.diagonal(plain.gram())), 1.0)


class StepContext:
    r"""Context of one step of one run: the argument `now` of `Algorithm.step`.

    Parameters
    ----------
    inv_d : 1/d
    t : time of the step, or a function that returns it
    fields : fields of all directions, by name, shape (p, L) each; the samples of the batch are the first of the L inputs
    fixed : fields of the fixed directions, shape (k, L)
    slope : function of the fields (p, b) of the samples and of the scalars that returns gradients with respect to the fields
        (p, b) and to the scalars (..., b)
    batch : number b of inputs that are samples; the others are noise vectors of the algorithm
    scalars : trained scalars of each name
    kept : scalars that the algorithm stores, by name
    gram_of : function of two names that returns the scalar products of their directions
    inputs_gram : function that returns the Gram matrix of the inputs, divided by d
    """

    def __init__(self, inv_d, t, fields, fixed, slope, batch, scalars, kept, gram_of, inputs_gram) -> None:
        self.inv_d, self._t, self.fields_by_name, self.fixed = inv_d, t, fields, fixed
        self.batch, self.kept, self.gram_of = batch, kept, gram_of
        self._inputs_gram, self._zero_scalars = inputs_gram, jax.tree.map(jnp.zeros_like, scalars[STUDENT])
        self.weights = {name: WeightCombination(self, {name: 1.0}, None, scalars[name]) for name in fields}
        self.extra: WeightCombination | None = None  # noise that is added to the mean gradient
        self._gradients_with_extra: list[bool] = []  # shared by copies of the step
        self._repeats = False
        self.sample_gradients: SampleGradients = lambda at: slope(at.fields[:, :batch], at.updated_scalars)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Return the attribute that had the given name in earlier versions, with a deprecation warning."""
            return find_renamed_attribute(self, name, renamed=STEP_MEMBERS)

    @property
    def t(self) -> Float[Array, ""]:
        """Time of the step, in samples per dimension."""
        return self._t() if callable(self._t) else self._t

    @property
    def per(self) -> Array | float:
        """The same as `inv_d`, 1/d, under its older name."""
        return self.inv_d

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all arrays of weights that a step updates: "student", then those in the algorithm's memory."""
        return tuple(self.fields_by_name)

    def __getitem__(self, name: str) -> Any:
        """Return the stored weights, or the stored scalar, of the given name."""
        if name not in self.weights and name not in self.kept:
            known = ", ".join([*self.weights, *self.kept])
            raise BadInput(f"the algorithm reads {name!r} but stores {known}. Declare {name!r} in its `memory`.")
        return self.weights[name] if name in self.weights else self.kept[name]

    @property
    def student(self) -> WeightCombination:
        """Weights of the students before the step."""
        return self.weights[STUDENT]

    @property
    def inputs_gram(self) -> Float[Array, "L L"]:
        """Gram matrix of the inputs, divided by d."""
        return self._inputs_gram()

    def gradient(self, at: WeightCombination | None = None) -> WeightCombination:
        """Return the mean gradient of the loss over the batch, divided by d, at the students or at `at`."""
        slope = self.mean_gradient(*self.sample_gradients(self.student if at is None else at))
        if self.extra is None:
            return slope
        if self._gradients_with_extra:
            raise BadInput(
                "Private draws one noise vector for each batch, but its base takes several gradients. Give a base "
                "such as OnePassSGD(lr)."
            )
        self._gradients_with_extra.append(True)
        return slope + self.extra

    def mean_gradient(self, G: Float[Array, "p b"], slopes: PyTree) -> WeightCombination:
        """Return the batch mean of sample gradients (G for the fields, `slopes` for the scalars), over d, as weights."""
        return self.combine_inputs(G / self.batch, jax.tree.map(lambda leaf: leaf.mean(-1), slopes))

    def combine_inputs(self, coefficients: Float[Array, "p b"], slopes: PyTree = None) -> WeightCombination:
        """Return the sum over samples of coefficients times inputs, divided by d, as weights; `slopes` change the scalars."""
        p, b = self.fields_by_name[STUDENT].shape[0], self.batch
        if jnp.shape(coefficients) != (p, b):
            raise BadInput(
                f"now.combine_inputs needs a coefficient for each unit and sample, shape ({p}, {b}); got "
                f"{jnp.shape(coefficients)}. "
                f"Give an array of shape ({p}, {b})."
            )
        noises = self.fixed.shape[1] - b
        inputs = coefficients if noises == 0 else jnp.pad(coefficients, ((0, 0), (0, noises)))
        return WeightCombination(self, {}, inputs, self._zero_scalars, slopes)

    def noise(self) -> WeightCombination:
        """Return a standard normal vector for each unit, divided by d, as weights."""
        if self._repeats:
            raise BadInput("Repeated would use the same noise several times. Give Repeated a base without noise.")
        return WeightCombination(self, {}, self._noise_coefficients(), self._zero_scalars)

    def _noise_coefficients(self) -> Float[Array, "p L"]:
        """Return the coefficients that select the noise vectors: the last p inputs, one for each unit."""
        inputs, p = self.fixed.shape[1], self.fields_by_name[STUDENT].shape[0]
        return jnp.pad(jnp.eye(p), ((0, 0), (inputs - p, 0)))

    def with_gradients(self, sample_gradients: SampleGradients, extra: WeightCombination | None = None) -> StepContext:
        """Return a copy of the context with other gradients of the samples, and with `extra` added to the mean gradient.

        It serves algorithms that modify the gradient of another algorithm, such as `Clipped`.
        """
        other = copy(self)
        other.sample_gradients, other.extra = sample_gradients, _add_or_none(self.extra, extra)
        return other

    def repeat_after(self, step: Mapping[str, Any]) -> StepContext:
        """Return a copy of the context with the weights after a step and the same inputs; weights not named in `step` stay."""
        other = copy(self)
        other.weights = {name: step.get(name, old) for name, old in self.weights.items()}
        other.kept = {name: step.get(name, old) for name, old in self.kept.items()}
        other._repeats = True  # noise() raises from here on
        return other


def inverse_square_root(S: Float[Array, "p p"]) -> Float[Array, "p p"]:
    """Return the inverse of the symmetric root of a positive semi-definite matrix S, restricted to the range of S."""
    values, vectors = jnp.linalg.eigh(S)
    alive = values > 1e-13 * values[-1]  # smaller eigenvalues are rounding
    return (vectors * jnp.where(alive, lax.rsqrt(jnp.where(alive, values, 1.0)), 0.0)) @ vectors.T


def apply_coefficient(coefficient: Coefficient, rows: Float[Array, "p n"]) -> Float[Array, "p n"]:
    """Multiply directions, the rows of an array, by a coefficient: a scalar, one scalar per row, or a matrix."""
    rank = jnp.ndim(coefficient)  # known when the step is traced, so that no branch is compiled
    return coefficient * rows if rank == 0 else coefficient[:, None] * rows if rank == 1 else _small_matmul(coefficient, rows)


def _compose_coefficients(left: Coefficient, right: Coefficient) -> Coefficient:
    """Return the product of two coefficients, `right` applied first; it is a matrix only if one of them is."""
    if jnp.ndim(left) < 2 and jnp.ndim(right) < 2:
        return left * right
    right = right if jnp.ndim(right) == 2 else right * jnp.eye(left.shape[1])
    return apply_coefficient(left, right)


def _add_coefficients(left: Coefficient | None, right: Coefficient | None) -> Coefficient:
    """Return the sum of two coefficients, a matrix if one of them is; None stands for zero."""
    if left is None or right is None:
        return left if right is None else right
    if jnp.ndim(left) != jnp.ndim(right) and 2 in (jnp.ndim(left), jnp.ndim(right)):
        one = jnp.eye(len(left if jnp.ndim(left) == 2 else right))
        left, right = (c if jnp.ndim(c) == 2 else c * one for c in (left, right))
    return left + right


def _small_matmul(left: Float[Array, "n m"], right: Float[Array, "m l"]) -> Float[Array, "n l"]:
    """Multiply small matrices by products and sums, which compilers fuse with the code around them, unlike a call of BLAS."""
    return (left[:, :, None] * right[None]).sum(1)


def _add_or_none(left: Any, right: Any) -> Any:
    """Return the sum of two arrays, pytrees or weights; None stands for zero."""
    if left is None or right is None:
        return right if left is None else left
    return left + right if isinstance(left, WeightCombination) else add(left, right)
