r"""What a step of order 1/d does to the statistics as d grows.

With :math:`A = 1 + A_1/d` and :math:`C = \hat C/d` a step changes the overlaps M with the fixed directions and Q among all
directions by 1/d times

.. math:: A_1 M + \hat C F_E^\top, \qquad A_1 Q + QA_1^\top + \hat CF^\top + F\hat C^\top + \hat C\hat K\hat C^\top ,

where :math:`\hat K`, the Gram matrix of the inputs over d, has become the diagonal matrix of their variances. Averages are the
drift, and random combinations the noise of the SDE. :math:`A_1` is the derivative of the step by 1/d, taken automatically.
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

from sgdlimits.algorithm.base import Algorithm, Move, moves
from sgdlimits.algorithm.weights import Now, apply
from sgdlimits.errors import BadInput, is_traced
from sgdlimits.expectation.gaussian import Rule
from sgdlimits.expectation.gaussian.base import Group, square_root
from sgdlimits.expectation.symmetries import symmetries
from sgdlimits.model.sample import Model
from sgdlimits.statistics.frame import FieldFactor, split_by_frame
from sgdlimits.statistics.overlaps import STUDENT, Overlaps, rows_of, replace_scalars
from sgdlimits.statistics.products import Moments
from sgdlimits.statistics.trees import add, repeat_for_samples

MOST_CLASSES = 256
"""Up to how many ways in which the samples of a batch fall into classes are averaged over."""
MAX_UNROLLED_CLASSES = 16
"""Beyond so many of them the average is a loop, which compiles once."""
SAME = 1e-12
"""Up to this difference, that of rounding, a step at 1/d = 0 is the identity."""
PACKAGE = __name__.partition(".")[0] + "."


# --- steps that are linear in the gradient -----------------------------------------------------------------------------------


class Rates(NamedTuple):
    """What one sample does in a step that is linear in its gradient, for the n names of an algorithm.

    `past` is :math:`A_1` and `gradient` the coefficient of the gradient. `second` has both for the scalars, the gradient last,
    and by name where they have rates of their own.
    """

    past: Float[Array, "n n"]
    gradient: Float[Array, " n"]
    second: Any
    unit: tuple[bool, ...]


def rates(algorithm: Algorithm, t: Float[Array, ""] | float) -> Rates:
    """The rates of a linear step, found by making it with one unit, whose gradient is 1."""
    names, b = algorithm.names, algorithm.batch
    one, basis = jnp.ones((1, 1)), np.eye(len(names) + 1)
    unit: list[bool] = []
    which = algorithm.trained_scalars
    each = lambda number: number if isinstance(which, bool) else dict.fromkeys(which, number)
    fields, scalars = dict.fromkeys(names, one), {name: each(number) for name, number in zip(names, basis[:-1], strict=True)}

    def step(per):
        slope = lambda fields, a: (one, each(basis[-1:].T))
        now = Now(per, t, fields, one, slope, 1, scalars, {}, lambda *names: one, lambda: one)
        found, _ = moves(algorithm, now)
        unit[:] = [move.unit for move in found]
        past = jnp.array([[jnp.reshape(move.past.get(name, 0.0), ()) for name in names] for move in found])
        second = jax.tree.map(lambda *rows: jnp.stack(rows), *(move.scalars for move in found))
        return (past, second), jnp.stack([move.inputs[0, 0] for move in found])

    _, (past, second), gradient = jax.jvp(step, (jnp.zeros(()),), (jnp.ones(()),), has_aux=True)
    return Rates(past / b, gradient / b, jax.tree.map(lambda rows: rows / b, second), tuple(unit))


def linear_changes(
    algorithm: Algorithm, t: Any, length: Float[Array, ""], stats: Overlaps, sums: Moments, total: Any = 1.0
) -> tuple[Overlaps, Overlaps]:
    """(population, corrector): what weighted sums of one-sample products do to the statistics.

    One sample's products give d times its increment, expectations the drift, and random combinations the noise of the SDE.
    `length` is the limit of |x|^2/d, and `total` the sum of the weights; trailing axes broadcast. Of `sums` the products of
    gradients and fields have a column for each direction.
    """
    rate, names = rates(algorithm, t), algorithm.names
    groups = lambda rows: jnp.split(rows, len(names)) if len(names) > 1 else [rows]
    join = lambda parts: jnp.concatenate(parts) if len(parts) > 1 else parts[0]
    past = lambda rows: join([sum(c * part for c, part in zip(row, groups(rows), strict=True)) for row in rate.past])
    pushed = lambda rows: join([c * rows for c in rate.gradient])
    across = lambda rows: jnp.swapaxes(rows, 0, 1)
    M = past(total * stats.M) + pushed(sums.gradient_fixed)
    Q = past(total * stats.Q) + pushed(sums.gradient_field)
    spread = length * pushed(across(pushed(sums.gradient_gradient)))
    still = jax.tree.map(jnp.zeros_like, (stats.a, stats.kept))
    a, kept = still
    if algorithm.trains_second:
        scalars = [algorithm.trained(stats.a) if name == STUDENT else stats.kept[name] for name in names]
        before = (jax.tree.map(lambda leaf: total * leaf, part) for part in scalars)
        terms = [*before, algorithm.trained(sums.gradient_second)]
        new = {name: _combined(rate.second, i, terms) for i, name in enumerate(names)}
        a, kept = replace_scalars(a, new.pop(STUDENT)), {**kept, **new}
    population = Overlaps(a, M, Q + across(Q), kept, stats.names)
    corrector = Overlaps(still[0], jnp.zeros_like(M), spread, still[1], stats.names)
    return hold(rate.unit, stats, population), hold(rate.unit, stats, corrector)


def _combined(rows, i: int, terms):
    """The terms added up with the coefficients of row i, those of each name where the rows have names."""
    if isinstance(rows, dict):
        return {name: _combined(own, i, [term[name] for term in terms]) for name, own in rows.items()}
    return jax.tree.map(lambda *leaves: sum(c * leaf for c, leaf in zip(rows[i], leaves, strict=True)), *terms)


def hold(unit: tuple[bool, ...], stats: Overlaps, change: Overlaps) -> Overlaps:
    """A change of the statistics without what it does to the norms of directions that are scaled to 1."""
    if not any(unit):
        return change
    width = stats.M.shape[0] // len(unit)
    held = np.repeat(np.array(unit, float), width).reshape(-1, *(1 for _ in range(change.Q.ndim - 2)))
    norm = held * jnp.einsum("jj...->j...", change.Q) / 2
    M = change.M - stats.M * norm[:, None]
    return Overlaps(change.a, M, change.Q - stats.Q * (norm[:, None] + norm[None]), change.kept, change.names)


def extended(model: Model, students: Overlaps, stats: Overlaps, sums: Moments) -> tuple[Moments, Array]:
    r"""Products of gradients with the fields of all directions, and the Gram matrix of what a sample's gradient knows not.

    Each direction is :math:`\alpha E + \beta U` and a rest, whose field is independent of all that the gradient depends on.
    """
    if len(stats.names) == 1:
        return sums, jnp.zeros_like(stats.Q)
    p = students.M.shape[0]
    row = jnp.concatenate([stats.Q[:, rows_of(stats.names, STUDENT, p)], stats.M], axis=1)
    coefficients = row @ jnp.linalg.pinv(model.omega(students), hermitian=True)
    along_fixed = jnp.einsum("jr...,nr->jn...", sums.gradient_fixed, coefficients[:, p:])
    along_students = jnp.einsum("jl...,nl->jn...", sums.gradient_field, coefficients[:, :p])
    return sums._replace(gradient_field=along_fixed + along_students), stats.Q - coefficients @ row.T


# --- steps of any kind -------------------------------------------------------------------------------------------------------


class Drawn(NamedTuple):
    """One step's inputs as they enter the statistics."""

    fields: Float[Array, "P L"]
    fixed: Float[Array, "k L"]
    z: Float[Array, " b"]
    c: Int[Array, " b"]


def placed(model: Model, F: FieldFactor, points: Float[Array, "L s *batch"], z, c: Int[Array, "b *batch"]) -> Drawn:
    """The inputs of steps at standard normal coordinates: samples of the data by class, then the algorithm's own noise."""
    b = len(c)
    samples = jnp.moveaxis(model.inputs.from_normal(jnp.moveaxis(points[:b], 1, 0), c, model.frame), 0, 1)
    x = jnp.concatenate([samples, points[b:]])
    fields, fixed = (jnp.einsum("js...,is...->ji...", rows, x) for rows in F)
    return Drawn(fields, fixed, z, c)


def any_changes(algorithm: Algorithm, model: Model, t: Any, stats: Overlaps, x: Drawn) -> tuple[Overlaps, Overlaps]:
    """(population, corrector): d/b times what one step does to the statistics of one run as d grows."""
    names, b = algorithm.names, algorithm.batch
    p = model.width
    variances = jnp.concatenate([jnp.full(b, model.data.squared_length), jnp.ones(x.fixed.shape[1] - b)])
    part = {name: slice(i * p, (i + 1) * p) for i, name in enumerate(names)}
    unit: list[bool] = []

    def step(per):
        products = lambda one, other: stats.Q[part[one], part[other]]
        now = view(algorithm, model, per, t, x, stats, products, lambda: jnp.diag(variances))
        found, numbers = moves(algorithm, now)
        unit[:] = [move.unit for move in found]
        changed = {move.name: move.past for move in found}, {move.name: move.scalars for move in found}, numbers
        return changed, jnp.concatenate([move.inputs for move in found])

    _, (past, scalars, numbers), C = jax.jvp(step, (jnp.zeros(()),), (jnp.ones(()),), has_aux=True)
    rows = lambda X: jnp.concatenate(
        [sum((apply(c, X[part[h]]) for h, c in past[g].items()), jnp.zeros_like(X[:p])) for g in names]
    )
    M = rows(stats.M) + C @ x.fixed.T
    Q = rows(stats.Q) + C @ x.fields.T
    still = jax.tree.map(jnp.zeros_like, (stats.a, stats.kept))
    a = replace_scalars(still[0], scalars.pop(STUDENT))
    kept = {name: (numbers if name in numbers else scalars)[name] for name in stats.kept}
    population = Overlaps(a, M, Q + Q.T, kept, names)
    corrector = Overlaps(still[0], jnp.zeros_like(M), (C * variances) @ C.T, still[1], names)
    return jax.tree.map(lambda leaf: leaf / b, (hold(tuple(unit), stats, population), hold(tuple(unit), stats, corrector)))


def view(algorithm: Algorithm, model: Model, per, t, x: Drawn, at: Any, gram_of: Callable, inputs_gram: Callable) -> Now:
    """One step as the algorithm sees it, for one run: 1/d, the time, the inputs, scalars, and how Gram matrices are found.

    `at` has the scalars `a` and `kept` and the `names` of the rows of the fields.
    """
    names, a, kept, b, p = at.names, at.a, at.kept, algorithm.batch, model.width
    fields = {name: x.fields[i * p : (i + 1) * p] for i, name in enumerate(names)}
    trained = algorithm.trains_second
    scalars = {name: (algorithm.trained(a) if name == STUDENT else kept[name]) if trained else () for name in names}

    def slope(fields, numbers):
        G, slopes = model.gradient(fields, x.fixed[:, :b], repeat_for_samples(replace_scalars(a, numbers), b), x.z, x.c)
        return G, algorithm.trained(slopes)

    numbers = {name: kept[name] for name in algorithm.numbers}
    gram = inputs_gram if algorithm.uses_gram else None
    return Now(per, t, fields, x.fixed, slope, b, scalars, numbers, gram_of, gram)


# --- what a step says of itself ----------------------------------------------------------------------------------------------


def is_timed(algorithm: Algorithm, model: Model) -> bool:
    """Whether the step of an algorithm reads `now.t`; those of the package have schedules instead."""
    if _ours(algorithm):
        return False
    read = []

    def t():
        read.append(True)
        return jnp.ones(())

    jax.eval_shape(lambda: _trial(algorithm, model, t)[:2])
    return bool(read)


def check_limit(algorithm: Algorithm, model: Model) -> None:
    """Raise `BadInput` where steps change the weights, or what is remembered, by more than order 1/d."""
    if (_ours(algorithm) and _is_settled(algorithm)) or any(map(is_traced, jax.tree.leaves((algorithm, model)))):
        return
    with jax.ensure_compile_time_eval():
        far = [name for name, jump in jumps(algorithm, model).items() if float(jump) > SAME]
    if far:
        raise BadInput(
            f"{type(algorithm).__name__} has no limit as d grows: at 1/d = 0 its step still changes "
            f"{' and '.join(map(repr, far))}. Multiply the change by now.inv_d, which is 1/d, or use Chain(d) or SGD(d)."
        )


@eqx.filter_jit
def jumps(algorithm: Algorithm, model: Model) -> dict[str, Float[Array, ""]]:
    """How far a step at 1/d = 0 is from the identity, for the weights of each name and for each number."""
    found, numbers, stats = _trial(algorithm, model, jnp.zeros(()))
    largest = lambda *leaves: jnp.stack([jnp.abs(leaf).max(initial=0.0) for leaf in leaves]).max()

    def jump(move: Move) -> Float[Array, ""]:
        one = jnp.eye(model.width)
        past = [apply(move.past.get(name, 0.0), one) - one * (name == move.name) for name in algorithm.names]
        before = algorithm.trained(stats.a) if move.name == STUDENT else stats.kept[move.name]
        scalars = add(move.scalars, before, -1.0) if algorithm.trains_second else ()
        finite = jnp.isfinite(move.inputs).all()  # of what is added, C comes over d, and must not grow with it
        return jnp.where(finite, largest(*past, *jax.tree.leaves(scalars)), jnp.inf)

    changed = {name: largest(number - stats.kept[name]) for name, number in numbers.items()}
    return {**{move.name: jump(move) for move in found}, **changed}


def _trial(algorithm: Algorithm, model: Model, t: Any) -> tuple[tuple[Move, ...], dict[str, Array], Overlaps]:
    """One step at 1/d = 0 from orthonormal directions, with inputs of no special position; and where it began."""
    names, p, k, b, L = algorithm.names, model.width, model.teachers, algorithm.batch, algorithm.inputs(model.width)
    a, n = model.network.initial(1.0), len(names) * p
    kept = {name: algorithm.trained(a) for name in algorithm.memory}
    numbers = {name: jnp.full(p, *value) if isinstance(value, tuple) else value for name, value in algorithm.numbers.items()}
    stats = Overlaps(a, jnp.zeros((n, k)), jnp.eye(n), {**kept, **jax.tree.map(jnp.asarray, numbers)}, names)
    fields, fixed, z = np.split(np.random.default_rng(0).standard_normal((n + k + 1, L)), [n, n + k])
    x = Drawn(*map(jnp.asarray, (fields, fixed, z[0, :b], np.zeros(b, int))))
    products = lambda one, other: stats.Q[rows_of(names, one, p), rows_of(names, other, p)]
    now = view(algorithm, model, jnp.zeros(()), t, x, stats, products, lambda: jnp.eye(L))
    return *moves(algorithm, now), stats


def _ours(algorithm: Algorithm) -> bool:
    """Whether an algorithm, with those inside it, is the package's own: tests have seen what it says of itself."""
    base = getattr(algorithm, "base", None)
    return type(algorithm).__module__.startswith(PACKAGE) and (base is None or _ours(base))


def _is_settled(algorithm: Algorithm) -> bool:
    """Whether nothing inside a limit has another limit, such as momentum whose velocity is fast."""
    base = getattr(algorithm, "base", None)
    return base is None or (base.limit is base and _is_settled(base))


# --- averages over steps -----------------------------------------------------------------------------------------------------


class StepMean(NamedTuple):
    """Averages over the inputs of one step at the nodes of a rule."""

    algorithm: Algorithm
    model: Model
    rule: Rule

    def drift_parts(self, t, stats: Overlaps) -> tuple[Overlaps, Overlaps]:
        points, weights = self.rule.nodes(*self._space())
        each = jax.vmap(lambda x: any_changes(self.algorithm, self.model, t, stats, x), -1, -1)
        mean = lambda c: jax.tree.map(lambda leaf: (leaf * weights).sum(-1), each(self._draw(stats, points, c)))
        return self._over_classes(mean)

    def covariance(self, t, stats: Overlaps, vector) -> Float[Array, "n n"]:
        """Of the increments of steps, over b: d times their variance in a unit of time."""
        points, weights = self.rule.nodes(*self._space())
        b = self.algorithm.batch

        def of_classes(c):
            one = lambda x: vector(add(*any_changes(self.algorithm, self.model, t, stats, x)))
            change = jax.vmap(one, -1, -1)(self._draw(stats, points, c))
            return (change * weights).sum(-1), (change * weights) @ change.T

        mean, square = self._over_classes(of_classes)
        return b * (square - mean[:, None] * mean)

    @property
    def nodes(self) -> int:
        """How many steps an average is over."""
        return self.rule.nodes(*self._space()).weights.size

    def _space(self) -> tuple[int, Group | None]:
        """The dimension of the inputs of a step, and the turns of them that keep the symmetries of the model."""
        model, algorithm, L = self.model, self.algorithm, self.algorithm.inputs(self.model.width)
        dim = L * (len(algorithm.names) * model.width + model.teachers + 1)
        if algorithm.batch < L or len(algorithm.names) > 1:
            return dim, None
        each = np.asarray(symmetries(model))
        size = each.shape[1]
        lifted = np.concatenate([np.sign(each) * (np.abs(each) + i * size) for i in range(L)], axis=1)
        return dim, tuple(map(tuple, lifted.tolist()))

    def _draw(self, stats: Overlaps, points: Float[Array, "dim n"], c: tuple[int, ...]) -> Drawn:
        """The inputs of a step at standard normal points; the symmetries of the nodes are made for the symmetric root."""
        m, S = split_by_frame(stats.M, stats.Q, self.model.frame)
        k, n = self.model.teachers, m.shape[0]
        fixed = jnp.concatenate([jnp.asarray(self.model.frame), jnp.zeros((k, n))], axis=1)
        F = FieldFactor(jnp.concatenate([m, square_root(S)], axis=1)[..., None], fixed[..., None])
        x = points.reshape(self.algorithm.inputs(self.model.width), -1, points.shape[1])
        b = self.algorithm.batch
        return placed(self.model, F, x[:, :-1], x[:b, -1], jnp.broadcast_to(jnp.array(c)[:, None], (b, points.shape[1])))

    def _over_classes(self, f):
        inputs, b = self.model.inputs, self.algorithm.batch
        if inputs.classes**b > MOST_CLASSES:
            what = "classes" if self.model.network.mask_rate is None else "classes and masks of units"
            raise BadInput(
                f"{inputs.classes} {what} in batches of {b} are too many to average over, which "
                f"{type(self.algorithm).__name__} needs as d grows. Use Chain(d), or a smaller batch."
            )
        each = list(itertools.product(range(inputs.classes), repeat=b))
        weights = [jnp.prod(jnp.stack([inputs.outcomes[i] for i in c])) for c in each]
        if len(each) > MAX_UNROLLED_CLASSES:
            found = jax.lax.map(f, np.array(each))
            return jax.tree.map(lambda leaves: jnp.tensordot(jnp.stack(weights), leaves, 1), found)
        add_up = lambda *leaves: sum(leaf * w for leaf, w in zip(leaves, weights, strict=True))
        return jax.tree.map(add_up, *map(f, each))
