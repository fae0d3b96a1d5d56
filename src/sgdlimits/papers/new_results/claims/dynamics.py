"""Claims of this package beyond the papers: effective dynamics of chosen statistics, departures from plateaus, and leaps."""

from __future__ import annotations

from functools import partial
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np

import sgdlimits as sl
from sgdlimits.analysis.plateau import find_plateau
from sgdlimits.papers.claim import Comparison, Effort, claim, compare
from sgdlimits.papers.shorthand import mean_and_error, simulate


@claim(
    "any loss",
    "dynamics from a loss alone",
    r"Averages over samples at weights in $\mathbb R^d$ have $f$ and $g$ of matrix PCA, (3.1) of [2]",
    proof="[effective dynamics](effective_dynamics.md#a-loss-of-your-own)",
)
def compare_loss_alone(effort: Effort) -> Comparison:
    """Compare drift f and corrector g of two statistics, estimated from the loss |Y - xx^T|^2 in R^40, with (3.1) of [2].

    The statistics are the overlap m with the spike and the squared orthogonal norm r2; (3.1) is taken at this dimension.
    """
    snr, lr, d = 1.2, 0.7, 40
    weights = np.random.default_rng(0).normal(size=d) / np.sqrt(d) + 0.5 * np.eye(d)[0]
    found = sl.effective_dynamics(
        loss=lambda x, Y: ((Y - jnp.outer(x, x)) ** 2).sum(),
        sample=lambda key, d: jax.random.normal(key, (d, d)).at[0, 0].add(snr),
        statistics=lambda x: {"m": x[0], "r2": (x[1:] ** 2).sum()},
        at=weights, lr=lr, samples=effort.runs(4096, 512),
    ).estimates()  # fmt: skip
    m, r2 = weights[0], (weights[1:] ** 2).sum()
    size = m**2 + r2
    right = [-4 * lr * m * (snr - size), 8 * lr * size * r2, 8 * lr**2 * (size * (d - 1) + r2) / d]
    parts = [found.f["m"], found.f["r2"], found.g["r2"]]
    return compare([float(part) for part in parts], right, sigma=[float(part.error) for part in parts])


@claim(
    "any problem",
    "second-order term of the chain rule",
    r"$v = \varphi(u)$ has the corrector $\varphi' g + \frac1{2d}\varphi'':\Sigma$, of order one if $\varphi$ magnifies",
    proof="[effective dynamics](effective_dynamics.md#statistics-of-your-own)",
)
def compare_chain_rule(effort: Effort) -> Comparison:
    """Compare the mean of v = d m^2, in the exact chain of phase retrieval near the saddle, with the ODE derived for v.

    Here m is the overlap with the teacher and d the dimension.
    """
    problem, d, t = sl.presets.phase_retrieval(lr=0.05, noise=0.5), 20_000, 1.0
    dynamics = sl.effective_dynamics(problem, statistics=lambda u, d: {"v": d * u.M[0, 0] ** 2}).at(d)
    state = lambda v: sl.Overlaps([1.0], [[np.sqrt(v / d)]], [[1.0]])
    one, two = (float(dynamics.h(state(v))["v"]) for v in (1.0, 2.0))
    # linear in v near the saddle
    slope, kick = two - one, 2 * one - two
    runs = simulate(problem, sl.Chain(d), state(1.0), t, runs=effort.runs(4096, 512), save=2)
    number, sigma = mean_and_error(d * runs.M.values[:, -1, 0, 0] ** 2)
    return compare(number, (1 + kick / slope) * np.exp(slope * t) - kick / slope, sigma=sigma, rtol=2e-3)


@claim(
    "any plateau",
    "noise of the departure",
    r"$K = \int_0^\infty e^{-At}\ell\Sigma\ell^\top e^{-A^\top t}dt$ is the variance added to the start; for matrices a factor "
    r"$\lambda/(\lambda-c_\delta)$ in all",
    proof="[exit times](exit_times.md#any-problem-with-a-plateau)",
)
def compare_departure(effort: Effort) -> Comparison:
    """Compare the computed noise of the departure from a plateau with closed forms for spiked matrices and phase retrieval."""
    rows = []
    for snr, lr in ((3.0, 0.1), (2.0, 0.8)):
        found = find_plateau(sl.presets.spiked_tensor(2, snr, lr=lr), sl.RandomInit(d=1000))
        rows.append((1 + found.noise[0, 0] / found.projection[0, 0] ** 2, snr / (snr - lr)))
    found = find_plateau(sl.presets.phase_retrieval(lr=1 / 12), sl.RandomInit(d=1000))
    rows.append((1 + found.noise[0, 0] / found.projection[0, 0] ** 2, 2.0))
    # the path has four quadrature nodes on each of its pieces
    return compare(*np.transpose(rows), rtol=1e-3)


def _growing_tensor(k: int, a: float, d: int) -> sl.SpikedTensor:
    """Return the spiked tensor of order k whose signal-to-noise ratio grows as d^a."""
    return sl.presets.spiked_tensor(k, snr=1.2 * float(d) ** a)


@claim(
    "growing signals",
    "exponent at which the theorem applies",
    r"At $\lambda = \Lambda n^a$ the limit of $\sqrt n\, m$ exists up to $a = (k-2)/2$; above, its drift grows as "
    r"$n^{a-(k-2)/2}$",
    proof="[effective dynamics](effective_dynamics.md#the-conditions-and-which-limit-holds)",
)
def compare_growing_signal(effort: Effort) -> Comparison:
    """Compare the measured exponent of the drift of sqrt(n) m with max(a - (k - 2)/2, 0).

    Here m is the overlap with the spike of a tensor of order k in dimension n, whose signal-to-noise ratio grows as n^a.
    """
    rows = []
    for k, a in ((2, 0.25), (3, 0.25), (3, 0.75), (4, 1.0), (4, 1.25)):
        family = partial(_growing_tensor, k, a)
        found = sl.effective_dynamics(family).localizability(magnify={"m": 0.5}, around=sl.Spike(0.0, 1.0), samples=256)
        assert found.drift is not None
        rows.append((found.drift.exponent, max(a - (k - 2) / 2, 0.0)))
    return compare(*np.transpose(rows), atol=0.05)


@claim(
    "correlated directions",
    "correlation shortens leaps",
    r"$x_1x_2x_3$ has one leap of 3, and at any correlation $\rho$ of its directions leaps of 1 and 2, the first to "
    r"$\rho(e_1+e_2+e_3)$",
    proof="[targets of several directions](staircase.md#correlated-directions)",
)
def compare_correlated_leaps(effort: Effort) -> Comparison:
    """Compare the orders of the leaps of x1 x2 x3 with 3 for orthogonal directions, and with 1 and 2 for correlated ones.

    The first Hermite tensor, computed by quadrature, is compared with the correlation rho times the sum of the directions.
    """
    product, rho = lambda x: x[0] * x[1] * x[2], 0.3
    gram = (1 - rho) * np.eye(3) + rho
    apart, together = sl.leaps(sl.Target(product, teachers=3)), sl.leaps(sl.Target(product, gram=gram))
    nodes, weights = np.polynomial.hermite_e.hermegauss(6)
    z = np.stack([axis.ravel() for axis in np.meshgrid(nodes, nodes, nodes, indexing="ij")])
    w = np.prod(np.meshgrid(weights, weights, weights, indexing="ij"), axis=0).ravel() / (2 * np.pi) ** 1.5
    root = np.linalg.cholesky(gram)
    # E[y z] in orthonormal coordinates, as a combination of the directions
    tensor = np.linalg.solve(root.T, z @ (w * np.prod(root @ z, axis=0)))
    ratios = [second / first for first, second in pairwise(np.ravel(together[0].combinations))]
    orders = [float(leap.order) for leap in (*apart, *together)]
    return compare([*orders, *tensor, *ratios], [3, 1, 2, rho, rho, rho, 1, 1], rtol=1e-9, atol=1e-7)
