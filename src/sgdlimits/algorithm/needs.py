"""Tests of an algorithm's step: whether it uses noise or products of inputs, and whether it is linear in the gradient.

The use of noise and of products of inputs is recorded while the step is traced once on abstract arrays. Linearity is probed on
random values. Algorithms of this package declare whether they are linear, and a test compares the declaration with the probe.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from sgdlimits.algorithm.base import Algorithm, StepRequirements, compute_updates, try_step
from sgdlimits.algorithm.weights import StepContext, apply_coefficient
from sgdlimits.errors import BadInput
from sgdlimits.part import at_start
from sgdlimits.statistics.overlaps import STUDENT

PACKAGE_PREFIX = __name__.partition(".")[0] + "."
PROBE_SCALES = (1e-4, 1.0, 1e4)
"""Sizes of fields and gradients at which linearity is probed, to detect thresholds between these sizes."""
MAX_RELATIVE_ERROR = 1e-9
"""Maximum relative deviation from linearity that counts as rounding."""


def step_needs(algorithm: Algorithm, width: int) -> StepRequirements:
    """Find by tracing a step on `width` units whether an algorithm uses inner products of inputs, and noise."""
    if algorithm.needs is not None:
        return algorithm.needs
    return _evaluate_on_structure(_trace_needs, at_start(algorithm), width)


def input_count(algorithm: Algorithm, width: int) -> int:
    """Return the number of Gaussian vectors of one step: the samples, and the noise vectors of the units, if any."""
    return algorithm.batch + width * step_needs(algorithm, width).noise


def is_linear(algorithm: Algorithm, width: int) -> bool:
    """Return whether steps become linear in the gradient at the students as d grows, with scalar coefficients.

    The coefficients may depend on time, but not on fields, overlaps or other gradients. The drift then follows from the moments
    of plain SGD, which are closed for many activations.
    """
    return algorithm.linear if is_package_algorithm(algorithm) else probe_linearity(algorithm, width)


def probe_linearity(algorithm: Algorithm, width: int) -> bool:
    """Test on random values whether the steps of an algorithm are linear in the sense of `is_linear`."""
    try:
        limit = at_start(algorithm.limit)
    except BadInput:  # there is no limit, and hence no drift that linearity could simplify
        return False
    return not limit.numbers and _evaluate_on_structure(_test_linearity, limit, width)


def is_package_algorithm(algorithm: Algorithm) -> bool:
    """Return whether an algorithm and those that it wraps are defined in this package."""
    base = getattr(algorithm, "base", None)
    return type(algorithm).__module__.startswith(PACKAGE_PREFIX) and (base is None or is_package_algorithm(base))


def _evaluate_on_structure(fn: Callable[[Any, tuple, int], Any], algorithm: Algorithm, width: int) -> Any:
    """Evaluate `fn` on an algorithm, with a cache; `fn` may depend on shapes of the algorithm's arrays, not on values."""
    leaves, structure = jax.tree.flatten(algorithm)
    kinds = tuple(jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) if _is_array(leaf) else leaf for leaf in leaves)
    try:
        hash((structure, kinds))
    except TypeError:  # an algorithm of the user's own may hold a list
        return fn(structure, kinds, width)
    return _evaluate_cached(fn, structure, kinds, width)


@lru_cache(maxsize=256)  # a simulation asks several times, and a trace takes a millisecond or two
def _evaluate_cached(fn: Callable[[Any, tuple, int], Any], structure: Any, kinds: tuple, width: int) -> Any:
    """Return `fn(structure, kinds, width)`, cached by its arguments."""
    return fn(structure, kinds, width)


def _is_array(leaf: Any) -> bool:
    """Return whether a value in a pytree is an array of JAX or NumPy."""
    return isinstance(leaf, (jax.Array, np.ndarray, np.generic))


def _rebuild_algorithm(structure: Any, kinds: tuple, arrays: list) -> Algorithm:
    """Rebuild an algorithm from its pytree structure and the values `kinds` in it, with `arrays` in place of shapes."""
    remaining = iter(arrays)
    leaves = [next(remaining) if isinstance(kind, jax.ShapeDtypeStruct) else kind for kind in kinds]
    return jax.tree.unflatten(structure, leaves)


def _array_shapes(kinds: tuple) -> list[jax.ShapeDtypeStruct]:
    """Return the shapes and types of the arrays among the values `kinds` of an algorithm."""
    return [kind for kind in kinds if isinstance(kind, jax.ShapeDtypeStruct)]


def _trace_needs(structure: Any, kinds: tuple, width: int) -> StepRequirements:
    """Trace a step with a context that records whether its `inputs_gram` and its `noise` are used."""
    used: set[str] = set()

    class RecordingStep(StepContext):
        @property
        def inputs_gram(self):
            used.add("gram")
            return super().inputs_gram

        def _noise_coefficients(self):
            used.add("noise")
            # Only shapes matter here. Inputs are the samples alone, as in a step without noise, which may use all fields.
            return jnp.zeros((width, self.batch))

    def step(arrays: list) -> None:
        algorithm = _rebuild_algorithm(structure, kinds, arrays)
        probe = _Probe.draw(algorithm, width, algorithm.batch, jnp.zeros, 1.0)
        try_step(algorithm, probe.make_context(algorithm, jnp.ones(()), RecordingStep))

    jax.eval_shape(step, _array_shapes(kinds))
    return StepRequirements("gram" in used, "noise" in used)


class _Probe(NamedTuple):
    """Random values of all quantities in the context of a step, or shapes without values while JAX traces the step."""

    fields: dict[str, Array]
    fixed: Array
    scalars: dict[str, Any]
    kept: dict[str, Any]
    gram_of: Callable[[str, str], Array]
    inputs_gram: Callable[[], Array]
    scale: float

    @classmethod
    def draw(
        cls, algorithm: Algorithm, width: int, inputs: int, normal: Callable[[tuple[int, ...]], Array], scale: float
    ) -> _Probe:
        """Draw the values for a step of an algorithm, with fields and gradients of size `scale`.

        `normal` returns an array of a given shape. Inside a trace nothing of the size of a batch may be computed, which can be
        large.
        """
        p, names = width, algorithm.names
        which: Any = algorithm.trained_scalars
        shape = (len(names) + 4,)  # steps treat scalars one by one; so many tell their coefficients apart
        scalar = lambda: normal(shape) if which is True else {name: normal(shape) for name in which}
        rows, sample = {name: normal((p, 2)) for name in names}, normal((inputs, 1))
        # directions on the sphere have length 1, and their norm is a number after all
        size = {name: jnp.sqrt(1 + (W**2).sum(1, keepdims=True)) if algorithm.sphere else 1.0 for name, W in rows.items()}
        return cls(
            {name: scale * normal((p, inputs)) for name in names},
            scale * normal((1, inputs)),
            {name: scalar() if which else () for name in names},
            {name: jnp.ones(p if isinstance(value, tuple) else ()) for name, value in algorithm.numbers.items()},
            lambda one, other: (
                (rows[one] @ rows[other].T + jnp.eye(p) * (one == other)) / (size[one] * jnp.transpose(size[other]))
            ),
            lambda: jnp.eye(inputs) + sample @ sample.T / inputs,
            scale,
        )

    def gradients(self, fields: Any, scalars: Any) -> tuple[Any, Any]:
        """Return gradients that depend on the fields, so that gradients at other weights differ."""
        G = self.scale * jnp.sin(1 + 2 * fields / self.scale)
        return G, jax.tree.map(lambda leaf: jnp.sin(1 + 3 * leaf)[:, None] * (2 + jnp.sin(fields[0])), scalars)

    def make_context(self, algorithm: Algorithm, inv_d: Any, kind: type[StepContext] = StepContext) -> StepContext:
        """Return the context of a step with the values of this probe; `inv_d` is 1/d and `kind` the class of the context."""
        t, b = jnp.ones(()), algorithm.batch
        samples = self.fields, self.fixed, self.gradients, b
        return kind(inv_d, t, *samples, self.scalars, self.kept, self.gram_of, self.inputs_gram)


class _StepCoefficients(NamedTuple):
    """Coefficients of a step: of the old weights at 1/d = 0, of the gradient at order 1/d, and of the trained scalars."""

    old_coefficients: np.ndarray
    gradient: np.ndarray
    second_layer_coefficients: list[np.ndarray]


def _test_linearity(structure: Any, kinds: tuple, width: int) -> bool:
    """Return whether an algorithm's steps on random values of several sizes have the same coefficients, so are linear."""
    if _trace_needs(structure, kinds, width).noise:  # which the gradient knows nothing of
        return False
    rng = np.random.default_rng(0)
    arrays = [rng.uniform(0.1, 0.9, kind.shape).astype(kind.dtype) for kind in _array_shapes(kinds)]
    algorithm = _rebuild_algorithm(structure, kinds, arrays)
    with jax.ensure_compile_time_eval():
        found = [_measure_coefficients(algorithm, width, seed, scale) for seed, scale in enumerate(PROBE_SCALES)]
    first = found[0]
    return first is not None and all(one is not None and _have_same_coefficients(one, first) for one in found)


def _have_same_coefficients(one: _StepCoefficients, other: _StepCoefficients) -> bool:
    """Return whether two steps have the same coefficients, up to rounding."""
    pairs = zip(
        [one.old_coefficients, one.gradient, *one.second_layer_coefficients],
        [other.old_coefficients, other.gradient, *other.second_layer_coefficients],
        strict=True,
    )
    return all(np.allclose(a, b, rtol=MAX_RELATIVE_ERROR, atol=MAX_RELATIVE_ERROR) for a, b in pairs)


def _measure_coefficients(algorithm: Algorithm, width: int, seed: int, scale: float) -> _StepCoefficients | None:
    """Measure the coefficients of a step on random values of size `scale`, or return None if these are not scalars."""
    p, b, names = width, algorithm.batch, algorithm.names
    rng = np.random.default_rng(seed)
    probe = _Probe.draw(algorithm, width, b, lambda shape: jnp.asarray(rng.standard_normal(shape)), scale)

    def step(inv_d):
        updates, _ = compute_updates(algorithm, probe.make_context(algorithm, inv_d))
        past = jnp.stack(
            [
                jnp.stack([apply_coefficient(update.old_coefficients.get(name, 0.0), jnp.eye(p)) for name in names])
                for update in updates
            ]
        )
        return (past, [update.scalars for update in updates]), jnp.stack([update.inputs for update in updates])

    _, (past, scalars), C = jax.jvp(step, (jnp.zeros(()),), (jnp.ones(()),), has_aux=True)
    G, slopes = probe.gradients(probe.fields[STUDENT], probe.scalars[STUDENT])
    rate = _solve_coefficients(np.asarray(C), [np.asarray(G)])
    old = np.asarray(past)
    number = old[..., 0, 0]
    if rate is None or not np.allclose(old, number[..., None, None] * np.eye(p), rtol=MAX_RELATIVE_ERROR, atol=1e-12):
        return None
    second = []
    mean = jax.tree.map(lambda leaf: leaf.mean(-1), slopes)
    for leaf in zip(*(jax.tree.leaves(tree) for tree in (*scalars, mean, *probe.scalars.values())), strict=True):
        new, known = np.stack(leaf[: len(names)]), [np.asarray(each) for each in leaf[len(names) :]]
        found = _solve_coefficients(new, known)
        if found is None:
            return None
        second.append(found)
    return _StepCoefficients(number, rate, second)


def _solve_coefficients(new: np.ndarray, known: list[np.ndarray]) -> np.ndarray | None:
    """Express each array in `new` as a linear combination of the known arrays; return None if that is not possible."""
    basis = np.stack([each.ravel() for each in known], axis=1)
    targets = new.reshape(len(new), -1).T
    if not np.isfinite(targets).all():
        return None
    found = np.linalg.lstsq(basis, targets, rcond=None)[0]
    size = np.abs(basis) @ np.abs(found) + np.abs(targets)
    return found if (np.abs(basis @ found - targets) <= MAX_RELATIVE_ERROR * size.max()).all() else None
