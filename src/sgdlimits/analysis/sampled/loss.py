r"""User's loss, sampler and statistics as functions on R^n, and the change of the statistics by one sample.

With the gradient G of one sample's loss at weights w, a step of size :math:`\delta` changes statistics u by

.. math:: -\delta\,\langle G, \nabla u\rangle + \tfrac12\delta^2\,\langle\nabla^2 u, G\otimes G\rangle + O(\delta^3).

Both terms are computed by forward-mode derivatives along G, so that neither the Hessian of u nor the covariance of G is formed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from sgdlimits.analysis.chain_rule import name_tree_entries, requires_dimension
from sgdlimits.checks import as_numbers
from sgdlimits.errors import BadInput
from sgdlimits.jaxtools import TreeLayout, jit_bound
from sgdlimits.trial import describe_error, try_function


class SampleTerms(NamedTuple):
    """Terms of one sample at one point: its loss, and the derivatives of the statistics along its gradient G.

    `first_derivatives` and `second_derivatives` are the first and second derivatives along G, and `mixed_derivatives` the mixed
    second derivative along G and an estimate of the mean of G.
    """

    loss: Float[Array, ""]
    first_derivatives: Float[Array, " k"]
    second_derivatives: Float[Array, " k"]
    mixed_derivatives: Float[Array, " k"]


class UserLoss(eqx.Module):
    """Loss, sampler and statistics of a user at one dimension d, as functions of weights in one row of length n.

    Parameters
    ----------
    loss, sample, statistics : the user's functions: of weights w and a sample x, of (key, d), and of w or of (w, d)
    d : dimension
    weights, values : layouts of the weights and of the values of `statistics`
    names : names of the k entries of the statistics
    """

    loss: Callable = eqx.field(static=True)
    sample: Callable = eqx.field(static=True)
    statistics: Callable = eqx.field(static=True)
    d: int = eqx.field(static=True)
    weights: TreeLayout = eqx.field(static=True)
    values: TreeLayout = eqx.field(static=True)
    names: tuple[str, ...] = eqx.field(static=True)

    @classmethod
    def of(cls, loss: Callable, sample: Callable, statistics: Callable, weights: PyTree, d: int) -> UserLoss:
        """Build a `UserLoss` from loss, sampler and statistics, each evaluated once; raise `BadInput` if one of these fails."""
        weights = as_weights("at", weights)
        layout = TreeLayout.from_tree(weights)
        at = f"weights of shape {', '.join(map(str, layout.shapes))}"
        x = _try_sample(sample, d)
        values = _with_d(statistics, d)
        try_function("statistics", values, at, weights, shape=None)
        try_function("loss", loss, f"{at} and one sample", weights, x)
        answer = jax.tree.map(lambda leaf: jnp.asarray(leaf, float), values(weights))
        names = name_tree_entries(answer)
        user = cls(loss, sample, statistics, d, layout, TreeLayout.from_tree(answer), names)
        first, second = jit_bound(UserLoss.slopes, user, fast_compile=True)(*[user.flatten_weights(weights)] * 2)
        for what, slope in (("first", first), ("second", second)):
            if not np.isfinite(slope).all():
                bad = names[int(np.argmin(np.isfinite(slope)))]
                raise BadInput(
                    f"statistics= has no finite {what} derivative of {bad} at the weights. Give weights where {bad} is smooth."
                )
        return user

    @classmethod
    def from_traced(cls, loss: Callable, sample: Callable, statistics: Callable, weights: PyTree, d: int) -> UserLoss:
        """Build a `UserLoss` from loss, sampler and statistics without evaluating these; weights may be traced by JAX."""
        answer = jax.eval_shape(_with_d(statistics, d), weights)
        names = name_tree_entries(jax.tree.map(lambda leaf: np.zeros(leaf.shape), answer))
        return cls(loss, sample, statistics, d, TreeLayout.from_tree(weights), TreeLayout.from_tree(answer), names)

    @property
    def size(self) -> int:
        """Number n of weights on which the user's loss depends, all arrays together."""
        return self.weights.size

    def flatten_weights(self, weights: PyTree) -> Float[Array, " n"]:
        """Flatten the user's weights to one row, shape (n,)."""
        return jnp.concatenate([jnp.ravel(jnp.asarray(leaf, float)) for leaf in jax.tree.leaves(weights)])

    def u(self, w: Any) -> Float[Array, " k"]:
        """Return the statistics of a row of weights, shape (k,)."""
        answer = _with_d(self.statistics, self.d)(self.weights.values(w))
        return jnp.concatenate([jnp.ravel(jnp.asarray(leaf, float)) for leaf in jax.tree.leaves(answer)])

    def evaluate_loss(self, w: Float[Array, " n"], x: PyTree) -> Float[Array, ""]:
        """Return the loss of one sample at a row of weights."""
        return jnp.asarray(self.loss(self.weights.values(w), x), float)

    def unflatten_statistics(self, row: Any) -> PyTree:
        """Return a vector of k statistics in the pytree structure that the user's `statistics` returns."""
        return jax.tree.map(np.asarray, self.values.values(jnp.asarray(row)))

    def draw(self, key: Array) -> PyTree:
        """Draw one sample by the user's sampler."""
        return self.sample(key, self.d)

    def slopes(self, w: Float[Array, " n"], v: Float[Array, " n"]) -> tuple[Float[Array, " k"], Float[Array, " k"]]:
        """Return the first and second derivatives of the statistics along the vector v, at the row of weights w."""
        return jax.jvp(lambda w: jax.jvp(self.u, (w,), (v,))[1], (w,), (v,))

    def terms(self, w: Float[Array, " n"], x: PyTree, pilot: Float[Array, " n"]) -> tuple[SampleTerms, Float[Array, " n"]]:
        """Return the first- and second-order terms of one sample at a row of weights, and the sample's gradient.

        `pilot` is an estimate of the mean gradient.
        """
        loss, gradient = jax.value_and_grad(self.evaluate_loss)(w, x)
        first, along = jax.linearize(lambda w: jax.jvp(self.u, (w,), (gradient,))[1], w)
        return SampleTerms(loss, first, along(gradient), along(pilot)), gradient

    def count_floats_per_sample(self, points: int) -> int:
        """Estimate the number of floats in memory for the terms of one sample at `points` points."""
        x = jax.eval_shape(lambda: self.draw(jax.random.key(0)))
        size = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(x))
        return size + points * (size + 8 * self.size)


def _try_sample(sample: Callable, d: int) -> PyTree:
    """Return one sample; raise `BadInput` unless it is finite and the same again for the same key."""
    try:
        x, again = (sample(jax.random.key(0), d) for _ in range(2))
    except Exception as reason:
        raise BadInput(f"sample(key, d) fails at d = {d}: {describe_error(reason)}") from reason
    for leaf, same in zip(*map(jax.tree.leaves, (x, again)), strict=True):
        if not np.isfinite(as_numbers("sample", leaf)).all():
            got = np.asarray(leaf).ravel()[:3]
            raise BadInput(f"sample must return finite numbers; got {got} ... Check the result of sample(key, {d}).")
        # compiled once, such a sampler would give the same numbers for every key
        if not np.array_equal(leaf, same):
            raise BadInput(
                "sample must return the same numbers for the same key; got different numbers. Draw with jax.random and the key."
            )
    return x


def as_weights(name: str, weights: Any) -> PyTree:
    """Convert weights to arrays of finite real numbers, a list of numbers to one array; raise `BadInput` if that fails."""
    leaves = jax.tree.leaves(weights)
    if isinstance(weights, (list, tuple)) and all(isinstance(leaf, (int, float)) for leaf in leaves):
        leaves = [weights := np.asarray(as_numbers(name, weights), float)] if leaves else []
    if not leaves:
        raise BadInput(f"{name} is empty. Give weights, as an array or a dictionary of arrays.")
    for leaf in leaves:
        array = np.asarray(as_numbers(name, leaf))
        if not np.isfinite(array).all():
            raise BadInput(f"{name} must be finite; got {array[~np.isfinite(array)][0]}. Give finite weights.")
    return jax.tree.map(lambda leaf: np.asarray(leaf, float), weights)


def dimension_of(weights: PyTree) -> int:
    """Return the length of the longest last axis of weights, the default of d."""
    return max((np.shape(leaf)[-1] for leaf in jax.tree.leaves(weights) if np.ndim(leaf)), default=1)


def _with_d(statistics: Callable, d: int) -> Callable:
    return (lambda w: statistics(w, d)) if requires_dimension(statistics) else statistics
