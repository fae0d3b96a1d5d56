"""Problems of projections: everything depends on the input through a few of its fields."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from sgdlimits.errors import AccuracyWarning, BadInput, check_number
from sgdlimits.gaussian import Estimate, GaussHermite, Rule
from sgdlimits.problem.algorithm import OnePassSGD
from sgdlimits.problem.base import Problem
from sgdlimits.problem.data import Data, gaussian
from sgdlimits.problem.directions import Directions, InitialWeights
from sgdlimits.problem.frame import Loading, frame_of
from sgdlimits.problem.loss import CrossEntropy, Loss, SquaredLoss, as_loss
from sgdlimits.problem.moments import ByRule, MomentRule, Moments
from sgdlimits.problem.network import TwoLayer
from sgdlimits.problem.overlaps import Overlaps, from_vector, symmetric, to_vector
from sgdlimits.problem.rules import choose_rule
from sgdlimits.problem.target import ClassLabels, Target


@eqx.filter_jit
def _estimate(problem: ProjectionProblem, stats: Overlaps) -> tuple[Moments, Moments]:
    return problem.rule.estimate(problem, stats)


def _relative(estimate: Estimate) -> float:
    """The largest error relative to the largest moment."""
    largest = lambda moments: max(float(np.abs(leaf).max()) for leaf in jax.tree.leaves(moments))  # noqa: E731
    return largest(estimate.error) / max(largest(estimate.value), np.finfo(float).tiny)


class ProjectionProblem(Problem):
    r"""A network that learns a target from Gaussian data by one-pass SGD, from its parts.

    With fields :math:`\lambda_j = u_j\cdot x`, :math:`\lambda^*_r = e_r\cdot x`, loss l and
    :math:`G = \partial l/\partial\lambda` the statistics obey, as :math:`d\to\infty`,

    .. math::
        \dot M &= -\text{lr}\,(E[G\lambda^{*\top}] + \text{ridge}\, M), \\
        \dot Q &= -\text{lr}\,(E[G\lambda^\top + \lambda G^\top] + 2\,\text{ridge}\, Q) + \text{lr}^2\sigma^2 E[GG^\top], \\
        \dot a &= -\text{lr}_2\,(E[\partial_a l] + \text{ridge}\, a),

    where the last term of Q is the corrector and the rest the population drift. On the sphere the change of each norm is taken
    out: :math:`\dot M_{jr} \mathrel{-}= M_{jr}\dot Q_{jj}/2` and
    :math:`\dot Q_{jl} \mathrel{-}= Q_{jl}(\dot Q_{jj} + \dot Q_{ll})/2`.

    Parameters
    ----------
    target : `Target`, the labels
    network : `TwoLayer`
    loss : `SquaredLoss`, `CrossEntropy`, or a JAX function loss(prediction, label)
    algorithm : `OnePassSGD`
    data : `Data`; standard normal inputs unless given
    rule : how expectations are computed: None chooses, a `Rule` such as `GaussHermite(32)` or `Sobol(12)` overrides
    initial : the law of the start that `RandomInit` follows
    paper_time : paper time per unit of lr t; None where no paper has its own clock
    name : how the problem is called in tables and files

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> problem = ProjectionProblem(
    ...     target=Target(lambda fixed: fixed[0] * fixed[1], teachers=2),
    ...     network=TwoLayer(3, jnp.abs), loss=SquaredLoss(), algorithm=OnePassSGD(lr=0.1))
    >>> problem.drift(Overlaps(jnp.ones(3), jnp.zeros((3, 2)), jnp.eye(3))).M.shape
    (3, 2)
    """

    data: Data
    target: Target
    network: TwoLayer
    loss: Loss
    algorithm: OnePassSGD
    rule: MomentRule
    initial: InitialWeights
    paper_time: float | None = eqx.field(static=True)
    name: str = eqx.field(static=True)

    def __init__(
        self,
        target: Target,
        network: TwoLayer,
        loss: Callable,
        algorithm: OnePassSGD,
        *,
        data: Data | None = None,
        rule: Rule | MomentRule | None = None,
        initial: InitialWeights | None = None,
        paper_time: float | None = None,
        name: str = "projection",
    ) -> None:
        self.data = gaussian(target.teachers) if data is None else data
        self.target, self.network, self.algorithm = target, network, algorithm
        self.loss = as_loss(loss)
        self.initial = InitialWeights(unit=algorithm.sphere) if initial is None else initial
        self.paper_time, self.name = paper_time, name
        if rule is None:
            self.rule = choose_rule(self)
        else:
            self.rule = ByRule(rule) if isinstance(rule, Rule) else rule
        if not self.rule.applies(self):
            raise BadInput(f"{type(rule).__name__} needs {self.rule.needs}. Leave out rule, or give Sobol().")

    @property
    def frame(self) -> Float[Array, "k k"]:
        """B, the fixed directions in their orthonormal frame: P = B B^T."""
        return jnp.linalg.cholesky(self.target.gram)

    def over_runs(self, f, batch, axis=0):
        """All at once in closed form; a few runs at a time where each needs many nodes."""
        few, runs = self.rule.runs_at_once(self), jax.tree.leaves(batch)[0].shape[axis]
        if few is None or few >= runs:
            return super().over_runs(f, batch, axis)
        first = jax.tree.map(lambda leaf: jnp.moveaxis(leaf, axis, 0), batch)
        return jax.tree.map(
            lambda leaf: jnp.moveaxis(leaf, 0, axis), jax.lax.map(f, first, batch_size=None if few == 1 else few)
        )

    @property
    def directions(self) -> Directions:
        return Directions(self.network.width, self.target.gram, self.initial)

    def vector(self, stats):
        """M row by row, the upper triangle of Q row by row, then `a` if it is trained."""
        return to_vector(stats, self.algorithm.trains_second)

    def from_vector(self, vector, like):
        return from_vector(vector, like, self.algorithm.trains_second)

    def names(self, stats):
        p, k = stats.M.shape
        pairs = zip(*np.triu_indices(p), strict=True)
        names = [f"M[{j},{r}]" for j in range(p) for r in range(k)] + [f"Q[{j},{l}]" for j, l in pairs]
        return (*names, *(f"a[{j}]" for j in range(p) if self.algorithm.trains_second))

    def moves(self, stats):
        """All but the norms on the sphere."""
        norms = {f"Q[{j},{j}]" for j in range(stats.a.shape[0])} if self.algorithm.sphere else set()
        return np.array([name not in norms for name in self.names(stats)])

    @property
    def size(self) -> int:
        return self.network.width * (self.network.width + self.target.teachers)

    @property
    def tolerance(self) -> float:
        return self.rule.tolerance(self)

    @property
    def rate(self):
        return 1.0 if self.paper_time is None else self.paper_time * self.algorithm.lr_sample

    @property
    def samples_per_step(self):
        return self.algorithm.batch

    # One sample. Fields have shape (p, ...) and (k, ...): any trailing axes, such as runs, nodes or none.

    def place(self, F: Loading, points: Float[Array, "n+1 samples *batch"], c: Array):
        """(fields, fixed fields, label noise) of class `c` at standard normal points, the label noise in the last row."""
        k = self.target.teachers
        inside = self.data.sigma * points[:-1]
        centre = self.data.centre(self.frame, c)
        centre = centre.reshape(*centre.shape, *(1 for _ in range(points.ndim - centre.ndim)))
        inside = jnp.concatenate([inside[:k] + centre, inside[k:]])
        fields, fixed = (jnp.einsum("js...,sn...->jn...", rows, inside) for rows in F)
        return fields, fixed, points[-1]

    def sample_loss(self, fields, fixed, a, z, c) -> Float[Array, "*batch"]:
        """The loss of one sample."""
        return self.loss(self.network(fields, a), self.target.label(fixed, z, c))

    def gradient(self, fields, fixed, a, z, c) -> tuple[Float[Array, "p *batch"], Float[Array, "p *batch"]]:
        """(G, dl/da) of one sample, by automatic differentiation."""
        total = lambda fields, a: self.sample_loss(fields, fixed, a, z, c).sum()  # noqa: E731
        return jax.grad(total, argnums=(0, 1))(fields, a)

    def outer(self, fields, fixed, a, z, c) -> Moments:
        """The products behind one sample's increment."""
        G, second = self.gradient(fields, fixed, a, z, c)
        loss = self.sample_loss(fields, fixed, a, z, c)
        return Moments(loss, G[:, None] * fixed[None], G[:, None] * fields[None], G[:, None] * G[None], second)

    def changes(self, stats: Overlaps, sums: Moments, total: Float[Array, "*batch"] | float = 1.0) -> tuple[Overlaps, Overlaps]:
        """(population, corrector): what weighted sums of one-sample products do to the statistics, off the sphere.

        One sample's products give d times its increment, expectations the drift, and random combinations the noise of the
        SDE. `total` is the sum of the weights; trailing axes broadcast.
        """
        sgd, cross = self.algorithm, sums.gradient_field
        lr, lr_second, decay = sgd.lr_sample, sgd.lr_second_sample, sgd.ridge * total
        M = -lr * (sums.gradient_fixed + decay * stats.M)
        Q = -lr * (cross + jnp.swapaxes(cross, 0, 1) + 2 * decay * stats.Q)
        still = jnp.zeros_like(stats.a)
        a = still if lr_second is None else -lr_second * (sums.gradient_second + decay * stats.a)
        spread = (lr * self.data.sigma) ** 2 * sums.gradient_gradient
        return Overlaps(a, M, Q), Overlaps(still, jnp.zeros_like(M), spread)

    def project(self, stats: Overlaps, change: Overlaps) -> Overlaps:
        """A change of the statistics without what it does to the norms, on the sphere; the change itself otherwise."""
        if not self.algorithm.sphere:
            return change
        norm = jnp.einsum("jj...->j...", change.Q) / 2
        M = change.M - stats.M * norm[:, None]
        return Overlaps(change.a, M, change.Q - stats.Q * (norm[:, None] + norm[None]))

    # All samples. Statistics without a batch axis.

    def drift_parts(self, stats: Overlaps) -> tuple[Overlaps, Overlaps]:
        stats = symmetric(stats)
        population, corrector = self.changes(stats, self.rule.moments(self, stats))
        return self.project(stats, population), self.project(stats, corrector)

    def covariance(self, stats: Overlaps) -> Float[Array, "n n"]:
        raw = self.rule.covariance(self, stats)
        if not self.algorithm.sphere:
            return raw
        projection = self._projection_matrix(stats)
        return projection @ raw @ projection.T

    def risk(self, stats: Overlaps) -> Float[Array, ""]:
        return self.rule.loss(self, stats)

    @property
    def floor(self) -> Float[Array, ""]:
        """The mean over inputs and label noise of loss(label without noise, label): weight noise for a squared loss.

        For the cross-entropy of class labels it is their mean entropy, the loss of a network that is sure of every class.
        """
        if isinstance(self.loss, SquaredLoss):
            return self.loss.weight * self.target.noise
        if isinstance(self.loss, CrossEntropy) and isinstance(self.target.readout, ClassLabels):
            return self.data.weights @ self.loss.least(self.target.readout.labels)
        return (self.rule if isinstance(self.rule, ByRule) else ByRule(GaussHermite())).floor(self)

    def expectation(self, stats: Overlaps, tolerance: float | None = None) -> Estimate:
        """The moments behind drift and risk with their error estimates; zero errors where they are in closed form.

        Where an error is above `tolerance`, relative to the largest moment, an `AccuracyWarning` says so.

        >>> import sgdlimits as sl
        >>> problem = sl.presets.committee(2, 1, "tanh")
        >>> value, error = problem.expectation(sl.FixedInit(0.5).one(problem), tolerance=1e-3)
        >>> bool(0 < error.gradient_gradient.max() < 1e-3 * value.gradient_field.max())
        True
        """
        estimate = Estimate(*_estimate(self, stats))
        if tolerance is not None:
            check_number("tolerance", tolerance, above=0)
            self._warn(_relative(estimate), tolerance, stacklevel=3)
        return estimate

    def warn_of_inaccuracy(self, stats: Overlaps, tolerance: float | None = None) -> None:
        usual = self.rule.accuracy(self)
        if usual is not None:
            self._warn(_relative(Estimate(*_estimate(self, stats))), tolerance or usual, stacklevel=5)

    def _warn(self, reached: float, tolerance: float, stacklevel: int) -> None:
        if not reached <= tolerance:
            warnings.warn(
                f"the expectations of this problem have a relative error of about {reached:.1e}, and {tolerance:.1e} was "
                f"asked for. {self.rule.remedy}",
                AccuracyWarning,
                stacklevel=stacklevel,
            )

    def check(self, stats: Overlaps) -> None:
        p, k = self.network.width, self.target.teachers
        for name, shape in {"a": (p,), "M": (p, k), "Q": (p, p)}.items():
            got = np.shape(getattr(stats, name))[1:]
            if got != shape:
                raise BadInput(
                    f"{name} must have shape {shape} for width {p} and {k} fixed direction{'s' if k > 1 else ''}; got {got}. "
                    "Give statistics of that shape."
                )
        values = {name: np.asarray(getattr(stats, name)) for name in ("a", "M", "Q")}
        for name, value in values.items():
            if not np.isfinite(value).all():
                raise BadInput(f"{name} must be finite; got {value[~np.isfinite(value)][0]}. Give finite statistics.")
        Q = values["Q"]
        if not np.allclose(Q, np.swapaxes(Q, -1, -2), atol=1e-9):
            raise BadInput("Q must be symmetric. Give Q = U U^T for some weights U.")
        norms = np.diagonal(Q, axis1=-2, axis2=-1)
        if self.algorithm.sphere and not np.allclose(norms, 1.0, atol=1e-9):
            raise BadInput(
                f"sphere=True keeps every norm at 1, but the start has Q_jj = {norms.ravel()[np.argmax(abs(norms - 1))]:.6g}. "
                "Give Q with ones on its diagonal, or sphere=False."
            )
        frame_of(stats, self.frame, p)

    def _projection_matrix(self, stats: Overlaps) -> Float[Array, "n n"]:
        """The sphere's projection as a matrix on increments in the order of `vector`."""
        project = lambda vector: self.vector(self.project(stats, self.from_vector(vector, stats)))  # noqa: E731
        return jax.jacfwd(project)(jnp.zeros_like(self.vector(stats)))
