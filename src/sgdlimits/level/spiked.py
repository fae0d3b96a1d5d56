r"""Spiked tensors at finite dimension: the exact chain of (m, r), SGD on x, and SGD on whole tensors.

The state is the estimate x of a spike v, with the overlap :math:`m = x\cdot v` and the norm r of the part of x orthogonal to v.
The chain and SGD on x use the law of the gradient's noise. For a k-tensor W of independent standard normal entries, the sum
over its axes of the contraction of W with x along all other axes is exactly

.. math:: \xi = \sqrt k\,|x|^{k-1}\,\big(g + (\sqrt k - 1)\,\hat x\,(\hat x\cdot g)\big), \qquad g \sim N(0, I_d):

contractions along different axes are correlated only through their components along x.
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, UInt32, UInt64

from sgdlimits.errors import BadInput, check_count
from sgdlimits.kernel.base import StepTime
from sgdlimits.kernel.random import Purpose, Stream
from sgdlimits.level.chain import chain_process
from sgdlimits.level.process import Process
from sgdlimits.level.sgd import check_drawable, runs_per_group, sgd_process, steps_per_block
from sgdlimits.problem.spiked import SpikedTensor, contract_noise
from sgdlimits.statistics.rows import row_products
from sgdlimits.statistics.spike import Spike
from sgdlimits.statistics.trees import as_floats, move_runs_first

MAX_TENSOR_ENTRIES = 2**22
"""Maximum number of entries of a tensor that `direct=True` draws; bounds the memory of one run."""
MAX_ENTRIES_PER_CALL = 2**18
"""Total number of tensor entries up to which several runs are computed at once; bounds memory."""


class PolarCoordinates(eqx.Module):
    """State of the spiked-tensor chain: the overlap m with the spike, and the norm r of the orthogonal component of x."""

    m: Float[Array, " runs"]
    r: Float[Array, " runs"]

    @property
    def spike(self) -> Spike:
        """The state as statistics: the overlap m and the squared norm r^2."""
        return Spike(self.m, self.r**2)


class SpikeDraws(NamedTuple):
    """Random variates of one step of the spiked-tensor chain, inside and outside the plane of the spike and the estimate.

    `inside` has two normal variates, along the spike v and along the component of x orthogonal to v; `outside` is chi-square.
    """

    inside: Float[Array, "2 runs"]
    outside: Float[Array, " runs"]


class SpikeChain(Process):
    r"""The exact chain of the overlap and the norm in spiked-tensor estimation, at a cost independent of d.

    In the plane of the spike v and the estimate x, of norm R, the noise of the gradient is :math:`(\xi_v, \xi_w)`. Orthogonal
    to the plane, it is :math:`\sqrt k R^{k-1}` times a standard normal vector in d - 2 dimensions, for a tensor of order k and
    signal-to-noise ratio :math:`\lambda`. With :math:`\kappa = 1 - (\text{lr}/d)(2kR^{2k-2} + \text{ridge})` and :math:`\beta =
    2\,\text{lr}/d`,

    .. math:: m \leftarrow \kappa m + \beta k\lambda m^{k-1} + \beta\xi_v, \qquad
              r^2 \leftarrow (\kappa r + \beta\xi_w)^2 + \beta^2 kR^{2k-2}\chi^2_{d-2}.
    """

    problem: SpikedTensor
    d: Float[Array, ""]
    block: int = eqx.field(static=True)

    def __init__(self, problem: SpikedTensor, d: int) -> None:
        self.problem, self.d, self.block = problem, as_floats(_check_dimension(d)), 64

    @property
    def check_interval(self):
        """Number of steps between checks for divergence: those in a sixteenth of a unit of t."""
        return self.d / 16

    def start(self, stats: Spike) -> PolarCoordinates:
        return PolarCoordinates(stats.m, jnp.sqrt(stats.r2))

    def draw(self, stream: Stream) -> SpikeDraws:
        # d is an array, so that another dimension needs no compilation
        outside = stream.chi_square(Purpose.CHI, (self.d - 2)[None])
        return SpikeDraws(stream.normal(Purpose.STEP, 2), outside[:, 0])

    def step(self, state: PolarCoordinates, variates: SpikeDraws, now: StepTime) -> PolarCoordinates:
        problem, stats = self.problem.at(now.t), state.spike
        k, rate = problem.order, problem.lr / self.d
        inward, along = problem.gradient_coefficients(stats)
        x = jnp.stack([state.m, state.r])
        noise = contract_noise(k, x, variates.inside, lambda a, b: (a * b).sum(0))
        m, w = (1 - rate * inward) * x + 2 * rate * noise
        # all noise orthogonal to the plane adds to r^2 by its squared length alone, which is chi-square
        outside = 4 * rate**2 * k * stats.squared_norm ** (k - 1) * variates.outside
        return PolarCoordinates(m + rate * along, jnp.sqrt(w**2 + outside))

    def statistics(self, state: PolarCoordinates) -> Spike:
        return move_runs_first(state.spike)


class EstimateProcess(Process):
    """SGD in R^d for a spiked tensor, on the estimate x of the spike v, which lies along the first axis."""

    runs_axis: ClassVar[int] = 0
    problem: SpikedTensor
    d: int = eqx.field(static=True)
    block: int = eqx.field(static=True)

    def __init__(self, problem: SpikedTensor, d: int) -> None:
        self.problem, self.d = problem, check_drawable(_check_dimension(d))
        self.block = steps_per_block(d, 1, 1)

    @property
    def group_size(self):
        return runs_per_group(self.d)

    def start(self, stats: Spike) -> Float[Array, "runs d"]:
        x = jnp.zeros((stats.m.size, self.d))
        # by symmetry around v, any vector with these statistics will do
        return x.at[:, 0].set(stats.m).at[:, 1].set(jnp.sqrt(stats.r2))

    def statistics(self, state: Float[Array, "runs d"]) -> Spike:
        return Spike(state[:, 0], row_products(state[:, 1:], state[:, 1:]))


class VectorProcess(EstimateProcess):
    """SGD in R^d for a spiked tensor, with the gradient's noise drawn directly as d normal variates instead of a tensor."""

    def draw(self, stream: Stream) -> Float[Array, "steps runs d"]:
        return stream.normal_rows(Purpose.INPUT, self.d)

    def step(self, state: Float[Array, "runs d"], variates: Float[Array, "runs d"], now: StepTime):
        problem = self.problem.at(now.t)
        inward, along = problem.gradient_coefficients(self.statistics(state))
        noise = contract_noise(problem.order, state, variates, lambda a, b: row_products(a, b)[:, None])
        gradient = (inward[:, None] * state - 2 * noise).at[:, 0].add(-along)
        return state - (problem.lr / self.d) * gradient


class TensorKeys(NamedTuple):
    """Keys from which each run draws its random tensor within a step: seed, run indices, step number."""

    seed: UInt32[Array, "2"]
    runs: UInt32[Array, " runs"]
    step: UInt64[Array, ""]


class TensorProcess(EstimateProcess):
    """SGD in R^d for a spiked tensor, by automatic differentiation of the loss on complete tensors Y.

    No law of the gradient's noise is assumed.

    Tensors are drawn inside the step, so that memory holds those of a few runs at a time.
    """

    def __init__(self, problem: SpikedTensor, d: int) -> None:
        super().__init__(problem, d)
        if d**problem.order > MAX_TENSOR_ENTRIES:
            raise BadInput(
                f"direct=True draws whole tensors, of at most {MAX_TENSOR_ENTRIES} entries; got {d}^{problem.order}. "
                "Use direct=False, which has the same law."
            )

    def draw(self, stream: Stream) -> TensorKeys:
        per_step = lambda leaf: jnp.broadcast_to(leaf, (stream.steps, leaf.size))
        steps = stream.first + jnp.arange(stream.steps, dtype=jnp.uint64)
        return TensorKeys(per_step(stream.seed), per_step(stream.runs), steps)

    def step(self, state: Float[Array, "runs d"], variates: TensorKeys, now: StepTime):
        problem = self.problem.at(now.t)
        k, entries = problem.order, self.d**problem.order

        def step_run(pair):
            x, run = pair
            # rolled: the ten rounds of the generator are a loop, which compiles faster
            W = Stream(variates.seed, run[None], variates.step, 1, rolled=True).normal_rows(Purpose.INPUT, entries)
            Y = W.reshape((self.d,) * k).at[(0,) * k].add(problem.snr)
            return x - (problem.lr / self.d) * jax.grad(problem.sample_loss)(x, Y)

        return lax.map(step_run, (state, variates.runs), batch_size=max(1, MAX_ENTRIES_PER_CALL // entries))


def _check_dimension(d: int) -> int:
    """Return the dimension d of a spiked tensor, or raise `BadInput` if it is below 2."""
    remedy = "The spike and the orthogonal part of x need a dimension each: use a larger d."
    return check_count("d", d, at_least=2, remedy=remedy)


chain_process.register(SpikedTensor, SpikeChain)


@sgd_process.register
def _(problem: SpikedTensor, d: int) -> EstimateProcess:
    process: type[EstimateProcess] = TensorProcess if problem.direct else VectorProcess
    return process(problem, d)
