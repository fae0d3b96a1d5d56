"""The function `effective_dynamics`: the limit of the statistics of SGD, for a problem or for a user's loss."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, overload

from sgdlimits.analysis.chain_rule import ChosenDynamics
from sgdlimits.analysis.dynamics import EffectiveDynamics
from sgdlimits.analysis.sampled.dynamics import DEFAULT_SAMPLE_NUMBER, SampleCount, SampledDynamics
from sgdlimits.checks import real
from sgdlimits.domain import Count, Function, Positive, Seed, checked
from sgdlimits.errors import BadInput
from sgdlimits.problem.base import Problem


@overload
def effective_dynamics(
    problem: Problem | Callable[[int], Problem],
    exponent: float = 1.0,
    *,
    statistics: Callable | None = None,
    d: int | None = None,
) -> EffectiveDynamics: ...
@overload
def effective_dynamics(
    *,
    loss: Callable,
    sample: Callable,
    statistics: Callable,
    at: Any,
    lr: float,
    d: int | None = None,
    exponent: float = 1.0,
    slowed: float = 0.0,
    samples: int = DEFAULT_SAMPLE_NUMBER,
    seed: int = 0,
) -> SampledDynamics: ...
@checked
def effective_dynamics(
    problem: Problem | Callable[[int], Problem] | None = None,
    exponent: Positive = 1.0,
    *,
    statistics: Function | None = None,
    d: Count | None = None,
    loss: Function | None = None,
    sample: Function | None = None,
    at: Any = None,
    lr: Positive | None = None,
    slowed: Annotated[float, real] = 0.0,
    samples: SampleCount = DEFAULT_SAMPLE_NUMBER,
    seed: Seed = 0,
) -> EffectiveDynamics | SampledDynamics:
    r"""Return the limit of the statistics of SGD at the step size :math:`\text{lr}\,d^{-\text{exponent}}` [2]_.

    It is the ballistic limit of Ben Arous, Gheissari and Jagannath; `local_limit` returns the diffusive limit near a fixed
    point. Give either a problem, or a loss with a sampler, statistics and weights, at which the dynamics is then estimated.

    Parameters
    ----------
    problem : a problem, or a function of d that returns one, for a problem that changes with the dimension
    exponent : exponent of d in the step size; the limit of the package's problems has the term quadratic in the learning rate
        (corrector) at 1, only the population drift above 1, and does not exist below 1
    statistics : with `problem`, a JAX function of its statistics, or of these and of d, whose dynamics follow by the chain
        rule; with `loss`, a function of the weights, or of these and of d. It returns a number, an array, or a dictionary of
        these
    d : with `problem`, the dimension of the second-order term of the chain rule, None for its limit at infinite d; with
        `loss`, the dimension, None for the length of the longest last axis of the weights
    loss : instead of a problem, a JAX function of weights and of one sample that returns a number
    sample : with `loss`, a JAX function of a key and of d that draws one sample: an array or a tree of arrays
    at : with `loss`, weights: an array or a tree of arrays; or a function of a key and of d that draws weights
    lr : with `loss`, the learning rate
    slowed : with `loss`, the power of d by which time is slowed: a unit of time is d^(exponent + slowed) samples
    samples : with `loss`, the number of samples in an average
    seed : with `loss`, the seed of samples and weights

    Returns
    -------
    `EffectiveDynamics` for a problem, with drifts `f`, `g`, `h` and diffusion matrix `Sigma` as functions of its statistics;
    `SampledDynamics` for a loss, with estimates of the same functions at weights.

    >>> import sgdlimits as sl
    >>> problem = sl.presets.phase_retrieval(lr=0.1, noise=0.5, sphere=False)
    >>> dynamics = sl.effective_dynamics(problem)
    >>> u = sl.Overlaps(a=[1.0], M=[[0.5]], Q=[[1.0]])
    >>> bool(dynamics.h(u).Q == problem.drift(u).Q), float(dynamics.g(u).M[0, 0])
    (True, 0.0)
    >>> dynamics.regime, sl.effective_dynamics(problem, exponent=1.5).regime
    ('critical', 'sub-critical')

    The drift of the cosine alone is not a function of the cosine: it also depends on the length of the weights.

    >>> cosine = lambda u: {"cosine": u.M[0, 0] / u.Q[0, 0] ** 0.5}
    >>> chosen = sl.effective_dynamics(problem, statistics=cosine)
    >>> round(float(chosen.h(u)["cosine"]), 4), chosen.closure().closed
    (0.055, False)

    Drift of the statistics of matrix PCA, estimated from its loss and a sampler alone at weights in R^30:

    >>> import jax, jax.numpy as jnp
    >>> loss = lambda x, Y: ((Y - jnp.outer(x, x)) ** 2).sum()
    >>> sample = lambda key, d: jax.random.normal(key, (d, d)).at[0, 0].add(1.2)
    >>> spike = lambda x: {"m": x[0], "r2": (x[1:] ** 2).sum()}
    >>> x = jnp.full(30, 30**-0.5).at[0].set(0.5)
    >>> sl.effective_dynamics(loss=loss, sample=sample, statistics=spike, at=x, lr=1.0).g()["r2"]
    9.676 ± 0.041
    >>> float(sl.effective_dynamics(sl.presets.spiked_tensor(2, 1.2)).g(sl.Spike(**spike(x))).r2)
    9.73...
    """
    if loss is not None:
        return _of_loss(problem, loss, sample, statistics, at, lr, d, exponent, slowed, samples, seed)
    for name, value in (("sample", sample), ("at", at), ("lr", lr)):
        if value is not None:
            raise BadInput(f"{name}= needs loss=, which is missing. Give loss=, or leave {name}= out.")
    if not callable(problem) and not isinstance(problem, Problem):
        raise BadInput(f"problem must be a Problem or a function of d; got {type(problem).__name__}. Take one from presets.")
    if statistics is None:
        if d is not None:
            raise BadInput(f"d= needs statistics=, which is missing; got d = {d}. Give statistics=, or leave d= out.")
        return EffectiveDynamics(problem, float(exponent))
    return ChosenDynamics(problem, float(exponent), statistics, d)


def _of_loss(problem, loss, sample, statistics, at, lr, d, exponent, slowed, samples, seed) -> SampledDynamics:
    """Return the dynamics of a loss, or raise `BadInput` if it comes with a problem, or without an argument it needs."""
    if problem is not None:
        raise BadInput("problem= and loss= are both given. Give one of them.")
    for name, value in (("sample", sample), ("statistics", statistics), ("at", at), ("lr", lr)):
        if value is None:
            raise BadInput(f"loss= needs {name}=, which is missing. Give loss=, sample=, statistics=, at= and lr=.")
    return SampledDynamics(loss, sample, statistics, at, float(lr), d, float(exponent), float(slowed), samples, seed)
