r"""Spiked tensors at finite dimension: the exact chain of (m, r), SGD on x, and SGD on whole tensors.

All rest on the noise of the gradient. For a k-tensor W of independent standard normal numbers, the sum over its axes of W
contracted with x on all others is exactly

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
from sgdlimits.level.sgd import block_of, drawable, group_of, sgd_process
from sgdlimits.problem.spiked import SpikedTensor, contract_noise
from sgdlimits.statistics.rows import row_products
from sgdlimits.statistics.spike import Spike
from sgdlimits.statistics.trees import as_floats, runs_first

MOST_ENTRIES = 2**22
"""Tensors of more entries are not drawn one by one."""
ENTRIES_AT_ONCE = 2**18
"""Runs whose tensors have together at most so many entries are stepped side by side."""


class Polar(eqx.Module):
    """The overlap m and the length r of the rest, at least 0."""

    m: Float[Array, " runs"]
    r: Float[Array, " runs"]

    @property
    def spike(self) -> Spike:
        return Spike(self.m, self.r**2)


class SpikeDraws(NamedTuple):
    """One step's normal numbers along v and along x outside v, and the squared length of the rest."""

    inside: Float[Array, "2 runs"]
    outside: Float[Array, " runs"]


class SpikeChain(Process):
    r"""The exact chain of a spiked tensor, at a cost without d.

    In the plane of v and of x the noise is :math:`(\xi_v, \xi_w)`, outside of it :math:`\sqrt k R^{k-1}` times a normal vector
    in d - 2 dimensions. With :math:`\kappa = 1 - (\text{lr}/d)(2kR^{2k-2} + \text{ridge})` and :math:`\beta = 2\,\text{lr}/d`,

    .. math:: m \leftarrow \kappa m + \beta k\lambda m^{k-1} + \beta\xi_v, \qquad
              r^2 \leftarrow (\kappa r + \beta\xi_w)^2 + \beta^2 kR^{2k-2}\chi^2_{d-2}.
    """

    problem: SpikedTensor
    d: Float[Array, ""]
    block: int = eqx.field(static=True)

    def __init__(self, problem: SpikedTensor, d: int) -> None:
        self.problem, self.d, self.block = problem, as_floats(_check_room(d)), 64

    @property
    def check_interval(self):
        """A sixteenth of a unit of t."""
        return self.d / 16

    def start(self, stats: Spike) -> Polar:
        return Polar(stats.m, jnp.sqrt(stats.r2))

    def draw(self, stream: Stream) -> SpikeDraws:
        outside = stream.chi_square(Purpose.CHI, (self.d - 2)[None])
        return SpikeDraws(stream.normal(Purpose.STEP, 2), outside[:, 0])

    def step(self, state: Polar, numbers: SpikeDraws, now: StepTime) -> Polar:
        problem, stats = self.problem.at(now.t), state.spike
        k, rate = problem.order, problem.lr / self.d
        inward, along = problem.gradient_coefficients(stats)
        x = jnp.stack([state.m, state.r])
        noise = contract_noise(k, x, numbers.inside, lambda a, b: (a * b).sum(0))
        m, w = (1 - rate * inward) * x + 2 * rate * noise
        outside = 4 * rate**2 * k * stats.squared_norm ** (k - 1) * numbers.outside
        return Polar(m + rate * along, jnp.sqrt(w**2 + outside))

    def statistics(self, state: Polar) -> Spike:
        return runs_first(state.spike)


class EstimateProcess(Process):
    """SGD on x in R^d, v along the first axis."""

    runs_axis: ClassVar[int] = 0
    problem: SpikedTensor
    d: int = eqx.field(static=True)
    block: int = eqx.field(static=True)

    def __init__(self, problem: SpikedTensor, d: int) -> None:
        self.problem, self.d = problem, drawable(_check_room(d))
        self.block = block_of(d, 1, 1)

    @property
    def group_size(self):
        return group_of(self.d)

    def start(self, stats: Spike) -> Float[Array, "runs d"]:
        x = jnp.zeros((stats.m.size, self.d))
        return x.at[:, 0].set(stats.m).at[:, 1].set(jnp.sqrt(stats.r2))

    def statistics(self, state: Float[Array, "runs d"]) -> Spike:
        return Spike(state[:, 0], row_products(state[:, 1:], state[:, 1:]))


class VectorProcess(EstimateProcess):
    """SGD on x with the noise of its gradient, made of d normal numbers a step."""

    def draw(self, stream: Stream) -> Float[Array, "steps runs d"]:
        return stream.normal_rows(Purpose.INPUT, self.d)

    def step(self, state: Float[Array, "runs d"], numbers: Float[Array, "runs d"], now: StepTime):
        problem = self.problem.at(now.t)
        inward, along = problem.gradient_coefficients(self.statistics(state))
        noise = contract_noise(problem.order, state, numbers, lambda a, b: row_products(a, b)[:, None])
        gradient = (inward[:, None] * state - 2 * noise).at[:, 0].add(-along)
        return state - (problem.lr / self.d) * gradient


class Tickets(NamedTuple):
    """What the runs need to draw their tensors of one step."""

    seed: UInt32[Array, "2"]
    runs: UInt32[Array, " runs"]
    step: UInt64[Array, ""]


class TensorProcess(EstimateProcess):
    """SGD on x from whole tensors Y, by the gradient of the loss: nothing is assumed about its noise.

    A tensor lives while its run makes its step: memory holds the tensors of a few runs at a time.
    """

    def __init__(self, problem: SpikedTensor, d: int) -> None:
        super().__init__(problem, d)
        if d**problem.order > MOST_ENTRIES:
            raise BadInput(
                f"direct=True draws whole tensors, of at most {MOST_ENTRIES} entries; got {d}^{problem.order}. "
                "Use direct=False, which has the same law."
            )

    def draw(self, stream: Stream) -> Tickets:
        each = lambda leaf: jnp.broadcast_to(leaf, (stream.steps, leaf.size))
        return Tickets(each(stream.seed), each(stream.runs), stream.first + jnp.arange(stream.steps, dtype=jnp.uint64))

    def step(self, state: Float[Array, "runs d"], numbers: Tickets, now: StepTime):
        problem = self.problem.at(now.t)
        k, entries = problem.order, self.d**problem.order

        def one(pair):
            x, run = pair
            W = Stream(numbers.seed, run[None], numbers.step, 1, rolled=True).normal_rows(Purpose.INPUT, entries)
            Y = W.reshape((self.d,) * k).at[(0,) * k].add(problem.snr)
            return x - (problem.lr / self.d) * jax.grad(problem.sample_loss)(x, Y)

        return lax.map(one, (state, numbers.runs), batch_size=max(1, ENTRIES_AT_ONCE // entries))


def _check_room(d: int) -> int:
    return check_count("d", d, at_least=2, remedy="The spike and the rest of x need a dimension each: use a larger d.")


chain_process.register(SpikedTensor, SpikeChain)


@sgd_process.register
def _(problem: SpikedTensor, d: int) -> EstimateProcess:
    process: type[EstimateProcess] = TensorProcess if problem.direct else VectorProcess
    return process(problem, d)
