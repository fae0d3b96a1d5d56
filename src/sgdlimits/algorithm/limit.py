r"""The limit of large d: increments of the statistics by a step of order 1/d.

A step maps all directions W to AW + CX with inputs X. With :math:`A = 1 + A_1/d` and :math:`C = \hat C/d` it changes the
overlaps M with the fixed directions and Q among all directions by 1/d times

.. math:: A_1 M + \hat C F_E^\top, \qquad A_1 Q + QA_1^\top + \hat CF^\top + F\hat C^\top + \hat C\hat K\hat C^\top ,

where :math:`F` and :math:`F_E` are the fields of the inputs along all directions W and along the fixed directions, and
:math:`\hat K`, the Gram matrix of the inputs over d, has become the diagonal matrix of their variances. The mean of these
increments is the drift, and random combinations of them give the noise of the SDE. :math:`A_1` is the derivative of the step
with respect to 1/d at 1/d = 0, by automatic differentiation.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from sgdlimits.algorithm.base import Algorithm, Update, compute_updates
from sgdlimits.algorithm.needs import input_count, is_package_algorithm
from sgdlimits.algorithm.weights import StepContext, apply_coefficient
from sgdlimits.errors import BadInput, is_traced
from sgdlimits.expectation.gaussian import Rule
from sgdlimits.expectation.gaussian.base import Group, square_root
from sgdlimits.expectation.symmetries import model_symmetries
from sgdlimits.model.sample import Model
from sgdlimits.statistics.frame import FieldFactor, split_by_frame
from sgdlimits.statistics.overlaps import STUDENT, Overlaps, replace_scalars, rows_of
from sgdlimits.statistics.products import Moments
from sgdlimits.statistics.trees import add, repeat_for_samples

MAX_CLASS_COMBINATIONS = 256
"""Maximum number of assignments of a batch's samples to classes, over all of which a step is averaged."""
MAX_UNROLLED_COMBINATIONS = 16
"""Maximum number of terms up to which a sum over classes is unrolled; a longer sum is a loop, compiled once."""
MAX_WEIGHT_CHANGE = 1e-12
"""Maximum change of the weights in a step at 1/d = 0 that counts as rounding, so that the step has a limit as d grows."""


# --- steps that are linear in the gradient -----------------------------------------------------------------------------------


class StepRates(NamedTuple):
    """Coefficients, per sample, of an algorithm's step that is linear in the gradient, for each array of weights it updates.

    Parameters
    ----------
    past : the matrix :math:`A_1` of a step that maps directions W to :math:`(1 + A_1/d)W` plus gradients
    gradient : coefficient of the gradient for each group of directions
    second : coefficients of the old scalars and, in the last column, of their gradient; a dictionary by name if scalars have
        different rates
    unit : whether the directions of each group are normalised
    """

    old_coefficients: Float[Array, "n n"]
    gradient: Float[Array, " n"]
    second_layer_coefficients: Any
    unit: tuple[bool, ...]


def step_rates(algorithm: Algorithm, t: Float[Array, ""] | float) -> StepRates:
    """Return the coefficients, at time t, of an algorithm's step that is linear in the gradient, measured on a single unit."""
    names, b = algorithm.names, algorithm.batch
    one, basis = jnp.ones((1, 1)), np.eye(len(names) + 1)
    unit: list[bool] = []
    which = algorithm.trained_scalars
    each = lambda number: number if isinstance(which, bool) else dict.fromkeys(which, number)
    fields, scalars = dict.fromkeys(names, one), {name: each(number) for name, number in zip(names, basis[:-1], strict=True)}

    # scalars are unit vectors, one for each name and one for the gradient: the new scalars are then the coefficients
    def step(inv_d):
        slope = lambda fields, a: (one, each(basis[-1:].T))
        now = StepContext(inv_d, t, fields, one, slope, 1, scalars, {}, lambda *names: one, lambda: one)
        updates, _ = compute_updates(algorithm, now)
        unit[:] = [update.unit for update in updates]
        past = jnp.array([[jnp.reshape(update.old_coefficients.get(name, 0.0), ()) for name in names] for update in updates])
        second = jax.tree.map(lambda *rows: jnp.stack(rows), *(update.scalars for update in updates))
        return (past, second), jnp.stack([update.inputs[0, 0] for update in updates])

    _, (past, second), gradient = jax.jvp(step, (jnp.zeros(()),), (jnp.ones(()),), has_aux=True)
    return StepRates(past / b, gradient / b, jax.tree.map(lambda rows: rows / b, second), tuple(unit))


def linear_step_increments(
    algorithm: Algorithm, t: Any, length: Float[Array, ""], stats: Overlaps, sums: Moments, total: Any = 1.0
) -> tuple[Overlaps, Overlaps]:
    """Compute the changes of the statistics by a step that is linear in the gradient, with changes of norms projected out.

    The arguments and the two parts of the result are those of `free_step_increments`.
    """
    rate = step_rates(algorithm, t)
    population, corrector = free_step_increments(algorithm, rate, length, stats, sums, total)
    return project_out_norms(rate.unit, stats, population), project_out_norms(rate.unit, stats, corrector)


def free_step_increments(
    algorithm: Algorithm, rate: StepRates, length: Float[Array, ""] | float, stats: Overlaps, sums: Moments, total: Any = 1.0
) -> tuple[Overlaps, Overlaps]:
    """Compute the changes of the statistics by a step that is linear in the gradient, as d grows, in two parts.

    The first part (population) is linear in the change of the weights, the second (corrector) is quadratic. If `sums` are the
    products of one sample, the result is d times its increment; expectations give the drift, and random combinations of samples
    the noise of the SDE. Directions are not normalised.

    Parameters
    ----------
    rate : coefficients of the step
    length : limit of |x|^2/d as d grows, for inputs x
    sums : weighted sums over samples of products of gradients and fields, with a column for the field of each direction
    total : sum of the weights of the samples; trailing axes broadcast
    """
    names = algorithm.names
    groups = lambda rows: jnp.split(rows, len(names)) if len(names) > 1 else [rows]
    join = lambda parts: jnp.concatenate(parts) if len(parts) > 1 else parts[0]
    past = lambda rows: join(
        [sum(c * part for c, part in zip(row, groups(rows), strict=True)) for row in rate.old_coefficients]
    )
    pushed = lambda rows: join([c * rows for c in rate.gradient])
    across = lambda rows: jnp.swapaxes(rows, 0, 1)
    M = past(total * stats.M) + pushed(sums.gradient_fixed)
    Q = past(total * stats.Q) + pushed(sums.gradient_field)
    spread = length * pushed(across(pushed(sums.gradient_gradient)))
    # only Q is quadratic in the weights, so that only Q has a corrector
    still = jax.tree.map(jnp.zeros_like, (stats.a, stats.kept))
    a, kept = still
    if algorithm.trains_second:
        scalars = [algorithm.select_trained(stats.a) if name == STUDENT else stats.kept[name] for name in names]
        before = (jax.tree.map(lambda leaf: total * leaf, part) for part in scalars)
        terms = [*before, algorithm.select_trained(sums.gradient_second)]
        new = {name: _combine_terms(rate.second_layer_coefficients, i, terms) for i, name in enumerate(names)}
        a, kept = replace_scalars(a, new.pop(STUDENT)), {**kept, **new}
    population = Overlaps(a, M, Q + across(Q), kept, stats.names)
    corrector = Overlaps(still[0], jnp.zeros_like(M), spread, still[1], stats.names)
    return population, corrector


def _combine_terms(rows, i: int, terms):
    """Return the linear combination of pytrees with row i of a matrix as coefficients; by name, if `rows` is a dictionary."""
    if isinstance(rows, dict):
        return {name: _combine_terms(own, i, [term[name] for term in terms]) for name, own in rows.items()}
    return jax.tree.map(lambda *leaves: sum(c * leaf for c, leaf in zip(rows[i], leaves, strict=True)), *terms)


def project_out_norms(unit: tuple[bool, ...], stats: Overlaps, change: Overlaps) -> Overlaps:
    """Correct a change of the statistics for the normalisation of directions to norm 1 after a step."""
    if not any(unit):
        return change
    square = change.Q.sum(0) if stats.has_blocks else change.Q
    width = square.shape[0] // len(unit)
    # normalising a row divides it by 1 + dQ_jj / 2 to first order
    held = np.repeat(np.array(unit, float), width).reshape(-1, *(1 for _ in range(square.ndim - 2)))
    norm = held * jnp.einsum("jj...->j...", square) / 2
    M = change.M - stats.M * norm[:, None]
    return Overlaps(change.a, M, change.Q - stats.Q * (norm[:, None] + norm[None]), change.kept, change.names)


def extend_moments(model: Model, students: Overlaps, stats: Overlaps, sums: Moments) -> tuple[Moments, Array]:
    r"""Extend the expectations in the drift by products with the fields of stored directions, such as averages.

    Each direction is a combination :math:`\alpha E + \beta U` of the fixed directions E and the students U, plus a component
    whose field is independent of the gradient. Returns the moments and the Gram matrix of these components.
    """
    if len(stats.names) == 1:
        return sums, jnp.zeros_like(stats.Q)
    p = students.M.shape[0]
    # regression of all fields on those of students and fixed directions; pinv, since students may coincide
    row = jnp.concatenate([stats.Q[:, rows_of(stats.names, STUDENT, p)], stats.M], axis=1)
    coefficients = row @ jnp.linalg.pinv(model.omega(students), hermitian=True)
    along_fixed = jnp.einsum("jr...,nr->jn...", sums.gradient_fixed, coefficients[:, p:])
    along_students = jnp.einsum("jl...,nl->jn...", sums.gradient_field, coefficients[:, :p])
    return sums._replace(gradient_field=along_fixed + along_students), stats.Q - coefficients @ row.T


# --- steps of any kind -------------------------------------------------------------------------------------------------------


class StepInputs(NamedTuple):
    """Quantities by which the inputs of a step enter the statistics: fields along all directions, label noise, and classes.

    `clean` has the fixed fields of the samples without input noise, on which labels depend; None without input noise.
    """

    fields: Float[Array, "P L"]
    fixed: Float[Array, "k L"]
    z: Float[Array, " b"]
    c: Int[Array, " b"]
    clean: Float[Array, "k b"] | None = None


def make_step_inputs(
    model: Model, F: FieldFactor, points: Float[Array, "L s *batch"], z, c: Int[Array, "b *batch"]
) -> StepInputs:
    """Compute the fields of the inputs of a step from standard normal coordinates.

    Parameters
    ----------
    F : coordinates of the trained and the fixed directions
    points : standard normal coordinates of the L inputs; the first b are samples, the others noise vectors of the algorithm
    z, c : label noise and classes of the samples
    """
    b = len(c)
    samples = jnp.moveaxis(model.inputs.from_normal(jnp.moveaxis(points[:b], 1, 0), c, model.frame), 0, 1)
    x = jnp.concatenate([samples, points[b:]])
    fields, fixed = (jnp.einsum("js...,is...->ji...", rows, x) for rows in F)
    return StepInputs(fields, fixed, z, c)


def step_increments(algorithm: Algorithm, model: Model, t: Any, stats: Overlaps, x: StepInputs) -> tuple[Overlaps, Overlaps]:
    """Compute the changes of the statistics of one run by one step as d grows, times d/b for b samples, in two parts.

    The first part (population) is linear in the change of the weights, the second (corrector) is quadratic.
    """
    names, b, p = algorithm.names, algorithm.batch, model.width
    # different inputs are orthogonal as d grows, so that their Gram matrix over d is diagonal
    variances = jnp.concatenate([jnp.full(b, model.data.squared_length), jnp.ones(x.fixed.shape[1] - b)])
    part = {name: slice(i * p, (i + 1) * p) for i, name in enumerate(names)}
    unit: list[bool] = []

    def step(inv_d):
        products = lambda one, other: stats.Q[part[one], part[other]]
        now = make_context(algorithm, model, inv_d, t, x, stats, products, lambda: jnp.diag(variances))
        updates, numbers = compute_updates(algorithm, now)
        unit[:] = [update.unit for update in updates]
        changed = (
            {update.name: update.old_coefficients for update in updates},
            {update.name: update.scalars for update in updates},
            numbers,
        )
        return changed, jnp.concatenate([update.inputs for update in updates])

    _, (past, scalars, numbers), C = jax.jvp(step, (jnp.zeros(()),), (jnp.ones(()),), has_aux=True)
    rows = lambda X: jnp.concatenate(
        [sum((apply_coefficient(c, X[part[h]]) for h, c in past[g].items()), jnp.zeros_like(X[:p])) for g in names]
    )
    M = rows(stats.M) + C @ x.fixed.T
    Q = rows(stats.Q) + C @ x.fields.T
    still = jax.tree.map(jnp.zeros_like, (stats.a, stats.kept))
    a = replace_scalars(still[0], scalars.pop(STUDENT))
    kept = {name: (numbers if name in numbers else scalars)[name] for name in stats.kept}
    population = Overlaps(a, M, Q + Q.T, kept, names)
    corrector = Overlaps(still[0], jnp.zeros_like(M), (C * variances) @ C.T, still[1], names)
    return jax.tree.map(
        lambda leaf: leaf / b,
        (project_out_norms(tuple(unit), stats, population), project_out_norms(tuple(unit), stats, corrector)),
    )


def make_context(
    algorithm: Algorithm, model: Model, inv_d, t, x: StepInputs, at: Any, gram_of: Callable, inputs_gram: Callable
) -> StepContext:
    """Create the context of one step of one run, from which an algorithm computes its update.

    Parameters
    ----------
    inv_d, t : 1/d and the time
    x : fields, label noise and classes of the inputs of the step
    at : state of the run, with the scalars `a` and `kept` and the `names` of the rows of the fields
    gram_of : function of two names that returns the products of their directions
    inputs_gram : function that returns the Gram matrix of the inputs over d
    """
    names, a, kept, b, p = at.names, at.a, at.kept, algorithm.batch, model.width
    fields = {name: x.fields[i * p : (i + 1) * p] for i, name in enumerate(names)}
    trained = algorithm.trains_second
    scalars = {name: (algorithm.select_trained(a) if name == STUDENT else kept[name]) if trained else () for name in names}

    seen = x.fixed[:, :b] if x.clean is None else x.clean

    def compute_gradients(fields, numbers):
        G, slopes = model.gradient(fields, seen, repeat_for_samples(replace_scalars(a, numbers), b), x.z, x.c)
        return G, algorithm.select_trained(slopes)

    numbers = {name: kept[name] for name in algorithm.numbers}
    return StepContext(inv_d, t, fields, x.fixed, compute_gradients, b, scalars, numbers, gram_of, inputs_gram)


# --- properties of a step ----------------------------------------------------------------------------------------------------


def depends_on_time(algorithm: Algorithm, model: Model) -> bool:
    """Return whether the step of an algorithm reads the time `now.t`; algorithms of this package have schedules instead."""
    if is_package_algorithm(algorithm):
        return False
    read = []

    # the time is a function here, which notices whether the step calls for it
    def recording_time():
        read.append(True)
        return jnp.ones(())

    jax.eval_shape(lambda: _make_trial_step(algorithm, model, recording_time)[:2])
    return bool(read)


def check_limit(algorithm: Algorithm, model: Model) -> None:
    """Raise `BadInput` if a step changes the weights or the memory by more than order 1/d, so that there is no limit."""
    is_known = is_package_algorithm(algorithm) and _has_limits_as_bases(algorithm)
    if is_known or any(map(is_traced, jax.tree.leaves((algorithm, model)))):
        return
    with jax.ensure_compile_time_eval():
        far = [name for name, jump in measure_step_limits(algorithm, model).items() if float(jump) > MAX_WEIGHT_CHANGE]
    if far:
        raise BadInput(
            f"{type(algorithm).__name__} has no limit as d grows: at 1/d = 0 its step still changes "
            f"{' and '.join(map(repr, far))}. Multiply the change by now.inv_d, which is 1/d, or use Chain(d) or SGD(d)."
        )


@eqx.filter_jit
def measure_step_limits(algorithm: Algorithm, model: Model) -> dict[str, Float[Array, ""]]:
    """Measure by how much a step at 1/d = 0 changes each array of weights and each stored scalar."""
    updates, numbers, stats = _make_trial_step(algorithm, model, jnp.zeros(()))
    largest = lambda *leaves: jnp.stack([jnp.abs(leaf).max(initial=0.0) for leaf in leaves]).max()

    def jump_of(update: Update) -> Float[Array, ""]:
        one = jnp.eye(model.width)
        past = [
            apply_coefficient(update.old_coefficients.get(name, 0.0), one) - one * (name == update.name)
            for name in algorithm.names
        ]
        before = algorithm.select_trained(stats.a) if update.name == STUDENT else stats.kept[update.name]
        scalars = add(update.scalars, before, -1.0) if algorithm.trains_second else ()
        finite = jnp.isfinite(update.inputs).all()  # inputs enter with C/d: at 1/d = 0, C only has to stay finite
        return jnp.where(finite, largest(*past, *jax.tree.leaves(scalars)), jnp.inf)

    changed = {name: largest(number - stats.kept[name]) for name, number in numbers.items()}
    return {**{update.name: jump_of(update) for update in updates}, **changed}


def _make_trial_step(algorithm: Algorithm, model: Model, t: Any) -> tuple[tuple[Update, ...], dict[str, Array], Overlaps]:
    """Make one step at 1/d = 0 from orthonormal directions with random inputs.

    Returns its updates, the new stored scalars, and the initial statistics.
    """
    names, p, k, b, L = algorithm.names, model.width, model.teachers, algorithm.batch, input_count(algorithm, model.width)
    a, n = model.network.initial(1.0), len(names) * p
    kept = {name: algorithm.select_trained(a) for name in algorithm.memory}
    numbers = {name: jnp.full(p, *value) if isinstance(value, tuple) else value for name, value in algorithm.numbers.items()}
    stats = Overlaps(a, jnp.zeros((n, k)), jnp.eye(n), {**kept, **jax.tree.map(jnp.asarray, numbers)}, names)
    fields, fixed, z = np.split(np.random.default_rng(0).standard_normal((n + k + 1, L)), [n, n + k])
    x = StepInputs(*map(jnp.asarray, (fields, fixed, z[0, :b], np.zeros(b, int))))
    products = lambda one, other: stats.Q[rows_of(names, one, p), rows_of(names, other, p)]
    now = make_context(algorithm, model, jnp.zeros(()), t, x, stats, products, lambda: jnp.eye(L))
    return *compute_updates(algorithm, now), stats


def _has_limits_as_bases(algorithm: Algorithm) -> bool:
    """Return whether each algorithm inside a wrapper is its own limit as d grows."""
    base = getattr(algorithm, "base", None)
    return base is None or (base.limit is base and _has_limits_as_bases(base))


# --- averages over steps -----------------------------------------------------------------------------------------------------


class StepAverages(NamedTuple):
    """Averages of the changes of the statistics over the random inputs of one step, at the nodes of a quadrature rule."""

    algorithm: Algorithm
    model: Model
    rule: Rule

    def drift_parts(self, t, stats: Overlaps) -> tuple[Overlaps, Overlaps]:
        """Compute the mean changes of one run's statistics by a step, in parts linear and quadratic in the weights' change."""
        points, weights = self.rule.nodes(*self._node_space())
        each = jax.vmap(lambda x: step_increments(self.algorithm, self.model, t, stats, x), -1, -1)
        mean = lambda c: jax.tree.map(lambda leaf: (leaf * weights).sum(-1), each(self._inputs_at(stats, points, c)))
        return self._mean_over_classes(mean)

    def covariance(self, t, stats: Overlaps, vector) -> Float[Array, "n n"]:
        """Compute d times the covariance of the statistics' changes per unit of t; `vector` flattens statistics."""
        points, weights = self.rule.nodes(*self._node_space())
        b = self.algorithm.batch

        def moments_of_classes(c):
            one = lambda x: vector(add(*step_increments(self.algorithm, self.model, t, stats, x)))
            change = jax.vmap(one, -1, -1)(self._inputs_at(stats, points, c))
            return (change * weights).sum(-1), (change * weights) @ change.T

        mean, square = self._mean_over_classes(moments_of_classes)
        # increments are per sample: a step of b samples has b times their variance per unit of time
        return b * (square - mean[:, None] * mean)

    @property
    def nodes(self) -> int:
        """Number of quadrature nodes of each average."""
        return self.rule.nodes(*self._node_space()).weights.size

    def _node_space(self) -> tuple[int, Group | None]:
        """Return the number of random variables in the inputs of a step, and the symmetries for quadrature nodes."""
        model, algorithm, L = self.model, self.algorithm, input_count(self.algorithm, self.model.width)
        dim = L * (len(algorithm.names) * model.width + model.teachers + 1)
        if algorithm.batch < L or len(algorithm.names) > 1:
            return dim, None
        # the symmetry of one sample acts on all samples of the batch at once
        each = np.asarray(model_symmetries(model))
        size = each.shape[1]
        lifted = np.concatenate([np.sign(each) * (np.abs(each) + i * size) for i in range(L)], axis=1)
        return dim, tuple(map(tuple, lifted.tolist()))

    def _inputs_at(self, stats: Overlaps, points: Float[Array, "dim n"], c: tuple[int, ...]) -> StepInputs:
        """Return the inputs of a step at standard normal points, for samples in the classes `c`.

        Coordinates are those of the symmetric root of the Gram matrix, on which the symmetries of the model act as on units.
        """
        m, S = split_by_frame(stats.M, stats.Q, self.model.frame)
        k, n = self.model.teachers, m.shape[0]
        fixed = jnp.concatenate([jnp.asarray(self.model.frame), jnp.zeros((k, n))], axis=1)
        F = FieldFactor(jnp.concatenate([m, square_root(S)], axis=1)[..., None], fixed[..., None])
        x = points.reshape(input_count(self.algorithm, self.model.width), -1, points.shape[1])
        b = self.algorithm.batch
        return make_step_inputs(
            self.model, F, x[:, :-1], x[:b, -1], jnp.broadcast_to(jnp.array(c)[:, None], (b, points.shape[1]))
        )

    def _mean_over_classes(self, f):
        """Average f over all assignments of the samples of a batch to classes, with their probabilities."""
        inputs, classes, b = self.model.inputs, self.model.inputs.classes, self.algorithm.batch
        if classes**b > MAX_CLASS_COMBINATIONS:
            what = "classes" if self.model.network.mask_rate is None else "classes and masks of units"
            raise BadInput(
                f"{classes} {what} in batches of {b} are too many to average over, which "
                f"{type(self.algorithm).__name__} needs in the limit of large d. Use Chain(d), or a smaller batch."
            )
        combinations = list(itertools.product(range(classes), repeat=b))
        weights = [jnp.prod(jnp.stack([inputs.class_probabilities[i] for i in c])) for c in combinations]
        if len(combinations) > MAX_UNROLLED_COMBINATIONS:
            values = jax.lax.map(f, np.array(combinations))
            return jax.tree.map(lambda leaves: jnp.tensordot(jnp.stack(weights), leaves, 1), values)
        return jax.tree.map(lambda *each: sum(leaf * w for leaf, w in zip(each, weights, strict=True)), *map(f, combinations))
