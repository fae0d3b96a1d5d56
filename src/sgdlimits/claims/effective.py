"""Claims of High-dimensional limit theorems for SGD: spiked matrices and tensors, mixtures, and the limit theorem itself."""

from __future__ import annotations

import itertools
from functools import reduce
from typing import Any

import numpy as np
from scipy.optimize import brentq, minimize_scalar

import sgdlimits as sl
from sgdlimits.claims.base import Effort, Found, claim, compare
from sgdlimits.claims.mediocrity import equation_55, variances

SPIKED, MIXED, LOCAL = (f"in `tests/laws/test_{name}.py`" for name in ("spiked_tensor", "fixed_points", "local_limit"))
INF = float("inf")

# --- spiked matrices and tensors ---------------------------------------------------------------------------------------------


def contract(tensors: np.ndarray, x: np.ndarray) -> np.ndarray:
    """The sum over the axes of k-tensors, stacked along the first axis, of the tensor contracted with x on all other axes."""
    parts = (np.moveaxis(tensors, axis, 1) for axis in range(1, tensors.ndim))
    return sum(reduce(lambda part, _: part @ x, range(tensors.ndim - 2), part) for part in parts)  # type: ignore[return-value]


def tensor_step(k: int, snr: float, lr: float, m: float, r: float) -> np.ndarray:
    """n times the mean change of (m, r^2) in a step with a real tensor, and n^2 times the variance of that of m, as n grows.

    Exact moments in four dimensions are polynomials in 1/n, which are followed to zero.
    """
    sizes, rows = np.array([3, 5, 7, 9]), []
    for n in sizes:
        x, v = np.concatenate([[m, r], np.zeros(n - 2)]), np.eye(n)[0]
        power = lambda u: reduce(np.multiply.outer, [u] * k)
        after = x + 2 * lr / n * contract((snr * power(v) - power(x))[None], x)[0]
        each = contract(np.eye(n**k).reshape(-1, *(n,) * k), x)
        S = (2 * lr / n) ** 2 * each.T @ each
        rows.append([n * (after[0] - m), n * (after[1:] @ after[1:] + np.trace(S[1:, 1:]) - r**2), n**2 * S[0, 0]])
    return np.polyfit(1 / sizes, rows, 3)[-1]


@claim("(3.1), Proposition 3.1", "effective dynamics of spikes", r"$\dot u_1 = 2u_1(\lambda k u_1^{k-2} - kR^{2k-2})$, $\dot u_2 = -4kR^{2(k-1)}(u_2 - c_\delta)$")
def spiked_ode(effort: Effort) -> Found:
    snr, lr, m, r = 1.7, 0.6, 0.5, 0.8
    R2, rows = m**2 + r**2, []
    for k in (2, 3):
        right = [2 * m * (snr * k * m ** (k - 2) - k * R2 ** (k - 1)), -4 * k * R2 ** (k - 1) * (r**2 - lr)]
        rows += list(zip(tensor_step(k, snr, lr, m, r)[:2] / lr, right, strict=True))
    return compare(*np.transpose(rows), rtol=1e-8)


@claim("section 3", "population loss of spikes", r"$\Phi = -2\lambda m^k + (r_\perp^2+m^2)^k + c$")
def spiked_risk(effort: Effort) -> Found:
    """The squared norm of a real tensor less a power of x, in R^4."""
    k, snr, x = 3, 1.7, np.array([0.5, 0.3, -0.6, 0.2])
    power = lambda u: reduce(np.multiply.outer, [u] * k)
    number = ((snr * power(np.eye(4)[0]) - power(x)) ** 2).sum()
    return compare(number, snr**2 - 2 * snr * x[0] ** k + (x @ x) ** k)


@claim("Proposition 3.2, (D.4)", "thresholds of spikes", r"$\lambda_c(2) = 1$, $m_\star = \sqrt{\lambda-1}$; for $k\ge3$ fixed points appear at $\lambda_c(k)$")
def spiked_threshold(effort: Effort) -> Found:
    """Roots of the drift, and the least ratio at which it has one."""
    drift = lambda k, snr, m: float(sl.presets.spiked_tensor(k, snr).drift(sl.Spike(m, 1.0)).m)
    rate = lambda snr: float(sl.linearise(sl.presets.spiked_tensor(2, snr), sl.Spike(0.0, 1.0)).matrix[0, 0])
    number = [brentq(rate, 0.5, 2.0), brentq(lambda m: drift(2, 1.6, m), 0.1, 2.0)]
    number += [minimize_scalar(lambda m, k=k: (m**2 + 1) ** (k - 1) / m ** (k - 2), bounds=(0.1, 3), method="bounded").fun for k in (3, 4)]
    return compare(number, [1.0, np.sqrt(0.6), *(sl.theory.effective.critical_snr(k) for k in (3, 4))], rtol=1e-8)


@claim("Proposition 3.2", "stability of the fixed points of spikes", r"$(0,0)$ unstable; $(0,1)$ stable below $\lambda_c(2)$ and always for $k>2$; $m_\dagger$ unstable, $m_\star$ stable")
def spiked_stability(effort: Effort) -> Found:
    """Signs of the largest eigenvalue at seven points."""
    top = sl.theory.effective.overlaps(3, 6.0)
    points = [(2, 0.8, 0.0, 1), (2, 1.2, 0.0, 1), (2, 1.2, np.sqrt(0.2), 1), (3, 6.0, 0.0, 1), (3, 6.0, top.m_dagger, 1)]
    points += [(3, 6.0, top.m_star, 1), (2, 0.8, 0.0, 0)]
    found = [sl.linearise(sl.presets.spiked_tensor(k, snr), sl.Spike(m, float(r2))).rates[0].real for k, snr, m, r2 in points]
    return compare(np.sign(found), [-1, 1, -1, -1, 1, -1, 1])


@claim(
    "Proposition 3.2", "fixed points of odd tensors", r"Fixed points at $\pm m_\dagger$ and $\pm m_\star$ for every $k \ge 3$",
    right=r"For odd $k$ only at $+m_\dagger$ and $+m_\star$", kind="misprint",
    tests=f"`test_fixed_points_of_tensors_and_their_stability` {SPIKED}",
)  # fmt: skip
def odd_tensors(effort: Effort) -> Found:
    """Where the ODE ends from m_star and from -m_star at k = 3."""
    m = sl.theory.effective.overlaps(3, 6.0).m_star
    start = sl.Spike(np.array([m, -m]), np.ones(2))
    end = sl.simulate(sl.presets.spiked_tensor(3, 6.0), sl.ODE(), start, t_max=20, runs=2, save=2, progress=False)
    return compare(end.m.values[:, -1], [m, 0.0], [m, -m], atol=1e-6)


@claim("Remark 1", "barrier at small steps", r"$m_\dagger \to 0$ as $c_\delta \to 0$")
def small_steps(effort: Effort) -> Found:
    """The root of the drift at k = 3 falls as the square of the learning rate."""
    root = lambda lr: brentq(lambda m: 4.0 * m - (m**2 + lr) ** 2, 1e-9, 0.5)
    found = float(sl.theory.effective.overlaps(3, 4.0, 0.01).m_dagger)
    return compare([found, np.log(root(0.02) / root(0.01)) / np.log(2)], [root(0.01), 2.0], atol=1e-3)


@claim("Proposition 3.3, (3.2)", "diffusion of a random start", r"$d\tilde u_1 = 2\tilde u_1(2\lambda 1_{k=2} - k)dt + 2\sqrt k\,dB$ at $\tilde u_2 = 1$")
def diffusion(effort: Effort) -> Found:
    """Drift at a small overlap and variance of a step with a real tensor."""
    rows = []
    for k, snr in ((2, 1.3), (3, 1.3)):
        step = tensor_step(k, snr, 1.0, 1e-6, 1.0)
        rows += [(step[0] / 1e-6, 2 * (2 * snr * (k == 2) - k)), (step[2], 4 * k)]
    return compare(*np.transpose(rows), rtol=1e-4)


def variance_of_starts(snr: float, time: float, runs: int, d: int = 20_000) -> tuple[float, float]:
    """The variance of sqrt(d) m of matrix PCA, with its error. At lr = 3 and the ratio lr snr the steps are those of lr = 1, longer."""
    lr = 3.0
    problem, t = sl.presets.spiked_tensor(order=2, snr=lr * snr, lr=lr), time / lr**2
    how: dict[str, Any] = {"t_max": t, "save": [t], "runs": runs, "seed": 1, "progress": False}
    squares = d * sl.simulate(problem, sl.Chain(d), sl.RandomInit(d, scale=lr**0.5), **how).m.values[:, -1] ** 2 / lr
    return float(squares.mean()), float(squares.std() / np.sqrt(runs))


@claim("after (3.2)", "transition of matrix PCA", r"$4(\lambda-1)\tilde u_1dt + 2\sqrt2\,dB$: stable for $\lambda<1$, unstable for $\lambda>1$")
def transition(effort: Effort) -> Found:
    """The variance over runs of the chain after a time, below and above the threshold."""
    rows = []
    for snr, time in ((0.8, 1.5), (1.2, 1.0)):
        growth = 4 * (snr - 1)
        rest = -4 / growth
        rows.append((*variance_of_starts(snr, time, effort.runs(8192, 4096)), rest + (1 - rest) * np.exp(2 * growth * time)))
    number, sigma, right = np.transpose(rows)
    return compare(number, right, rtol=0.02, sigma=sigma)


@claim("after (3.2)", "recovery takes n log n steps", r"For $\lambda>1$ SGD reaches $\pm m_\star$ in $O(n\log n)$ steps")
def recovery_scaling(effort: Effort) -> Found:
    """The growth of the chain's mean time with log d is 1/(8 (snr - 1))."""
    snr, runs, sizes, rows = 2.0, effort.runs(1024, 256), (500, 20_000), []
    for d in sizes:
        until = lambda stats: abs(stats.m) - 0.5
        how: dict[str, Any] = {"t_max": 60, "runs": runs, "seed": d, "until": until, "progress": False}
        times = sl.simulate(sl.presets.spiked_tensor(2, snr), sl.Chain(d), sl.RandomInit(d), **how).t_end.values
        rows.append((times.mean(), times.std() / np.sqrt(runs)))
    (soon, e), (late, f) = rows
    step = np.log(sizes[1] / sizes[0])
    return compare((late - soon) / step, 1 / 8, rtol=0.03, sigma=np.hypot(e, f) / step)


@claim(
    r"SDE after (3.2), $\lambda_n = \Lambda n^{(k-2)/2}$", "tensors with a growing ratio",
    r"Drift $2\tilde u_1 (k \Lambda - k \tilde u_2^{k-1})$",
    right=r"$2\tilde u_1 (k \Lambda \tilde u_1^{k-2} - k \tilde u_2^{k-1})$: for $k \ge 3$ the origin is always linearly stable, "
    r"with a barrier at $\tilde u_1 = \Lambda^{-1/(k-2)}$.",
    kind="misprint", tests=f"`test_scaled_tensor_has_a_barrier_at_every_strength` {SPIKED}",
)  # fmt: skip
def scaled_tensor(effort: Effort) -> Found:
    """The drift of sqrt(d) m at Lambda = 2, d = 10^10, below and above the barrier at 1/2."""
    k, Lambda, d = 3, 2.0, 10**10
    u = np.array([0.2, 1.5])
    problem = sl.presets.spiked_tensor(k, Lambda * d**0.5)
    number = [np.sqrt(d) * float(problem.drift(sl.Spike(each / np.sqrt(d), 1.0)).m) for each in u]
    return compare(number, 2 * u * (k * Lambda * u - k), 2 * u * (k * Lambda - k), rtol=1e-6)


# --- mixtures ----------------------------------------------------------------------------------------------------------------


@claim("Proposition 4.1, (4.3)", "effective dynamics of the binary mixture", r"$f$ and $g$ by the integrals $A^\mu$, $A^\perp$, $B$")
def mixture_dynamics(effort: Effort) -> Found:
    """f of v, m, Q and g of Q at one state, against relu and sigmoid by hand on inputs in R^200."""
    snr, ridge, lr, N, runs = 2.0, 0.1, 0.7, 200, effort.runs(20_000, 10_000)
    rng = np.random.default_rng(5)
    a, W = rng.normal(size=2), np.zeros((2, N))
    W[:, :3] = rng.normal(size=(2, 3)) / np.sqrt(2)
    sign = rng.choice([-1.0, 1.0], runs)
    x = rng.normal(size=(runs, N)) / np.sqrt(snr)
    x[:, 0] += sign
    fields = x @ W.T
    error = 1 / (1 + np.exp(-np.maximum(fields, 0) @ a)) - (sign > 0)
    G = error[:, None] * (fields > 0) * a
    cross = G[:, :, None] * fields[:, None]
    each = [lr * (G * x[:, :1] + ridge * W[:, 0]), lr * (error[:, None] * np.maximum(fields, 0) + ridge * a)]
    each.append((lr * (cross + cross.swapaxes(1, 2) + 2 * ridge * W @ W.T)).reshape(runs, 4))
    each.append((lr**2 * G[:, :, None] * G[:, None] / snr).reshape(runs, 4))
    dynamics, stats = sl.effective_dynamics(sl.presets.binary_mixture(snr, ridge, lr)), sl.Overlaps(a, W[:, :1], W @ W.T)
    f, g = dynamics.f(stats), dynamics.g(stats)
    values = np.concatenate(each, 1)
    right = np.concatenate([np.ravel(part) for part in (f.M, f.a, f.Q, g.Q)])
    return compare(values.mean(0), right, rtol=1e-4, sigma=values.std(0) / np.sqrt(runs))


def at_infinite_snr(a: Any, M: Any, ridge: float, preset: str = "binary_mixture") -> sl.Overlaps:
    """The drift where all weights are along the means."""
    M = np.asarray(M, float).reshape(len(a), -1)
    return getattr(sl.presets, preset)(snr=INF, ridge=ridge).drift(sl.Overlaps(np.asarray(a, float), M, M @ M.T))


@claim("Proposition 4.2", "mixture without noise", r"$\dot m_i = \frac{v_i}2\sigma(-v\cdot m) - \alpha m_i$ if $m_1m_2>0$, else with $v_im_i$")
def noiseless_mixture(effort: Effort) -> Found:
    ridge, rows = 0.1, []
    for a, m in (([0.8, 0.5], [0.7, 0.9]), ([0.8, -0.5], [0.7, -0.9])):
        drift, v, m = at_infinite_snr(a, m, ridge), np.array(a), np.array(m)
        gate = 1 / (1 + np.exp(np.full(2, v @ m) if m.prod() > 0 else v * m))
        rows += list(zip(np.ravel(drift.M), v / 2 * gate - ridge * m, strict=True))
        rows += list(zip(np.ravel(drift.a), m / 2 * gate - ridge * v, strict=True))
    return compare(*np.transpose(rows))


@claim("Proposition 4.2, section 5", "radius of the rings and threshold of the ridge", r"$C_\alpha = \log(1-2\alpha)-\log 2\alpha$ for $\alpha<\frac14$; XOR $-\mathrm{logit}(4\alpha)$ for $\alpha<\frac18$")
def rings(effort: Effort) -> Found:
    """Where the pull of one unit vanishes, and its growth from zero, with two and with four classes."""
    ridge, number = 0.1, []
    for preset, units, clusters in (("binary_mixture", 2, 1), ("xor_mixture", 4, 2)):
        M = np.zeros((units, clusters))

        def pull(v: float, preset: str = preset, M: np.ndarray = M) -> float:
            a = np.zeros(len(M))
            a[0] = M[0, 0] = v
            return float(at_infinite_snr(a, M, ridge, preset).a[0]) / v

        number += [brentq(pull, 0.05, 3.0) ** 2, pull(1e-4) + ridge]
    return compare(number, [np.log(0.8 / 0.2), 1 / 4, np.log(0.6 / 0.4), 1 / 8], rtol=1e-4)


@claim(
    "Proposition 4.2 (2)", "ends of the rings", "Open quarter circles", right="The end points on the axes are fixed points too.",
    kind="misprint", tests=f"`test_binary_mixture_has_two_stable_points_and_two_rings` {MIXED}",
)  # fmt: skip
def ring_ends(effort: Effort) -> Found:
    """How many of the four points on the axes are fixed."""
    radius, drifts = np.sqrt(np.log(4)), []
    for a in radius * np.array([[1, 0], [0, 1], [-1, 0], [0, -1]]):
        drift = at_infinite_snr(a, a, 0.1)
        drifts.append(max(np.abs(drift.a).max(), np.abs(drift.M).max()))
    return compare(sum(np.array(drifts) < 1e-9), 4, 0)


@claim("Proposition 4.2", "half of the runs are optimal", "The basin of the stable points has probability 1/2")
def binary_share(effort: Effort) -> Found:
    """The exact chain at N = 250 and snr = 100, as in figure 2; optimal are second layers of opposite signs."""
    runs, d = effort.runs(1024, 256), 250
    problem = sl.presets.binary_mixture(snr=100.0, ridge=0.1)
    end = sl.simulate(problem, sl.Chain(d), sl.RandomInit(d), t_max=30.0, runs=runs, save=[30.0], seed=2, progress=False)
    good = (end.a.values[:, -1].prod(1) < 0) & (np.abs(end.M.values[:, -1, :, 0]).min(1) > 0.3)
    return compare(good.mean(), 0.5, sigma=0.5 / np.sqrt(runs))


def xor_served(a: np.ndarray, M: np.ndarray) -> bool:
    """Whether all four clusters have a unit: positive ones along plus and minus mu, negative ones along nu."""
    own = np.argmax(np.abs(M), 1)
    large = np.abs(a) > 0.1
    return {(int(r), float(np.sign(M[j, r]))) for j, r in enumerate(own) if large[j]} == set(itertools.product((0, 1), (-1.0, 1.0)))


@claim(
    "section 5", "3/32 of the runs are optimal", "The probability $3/32$ follows from the limiting ODE.",
    right=r"The signs of $m$ at order $N^{-1/2}$ decide: start the ODE from the random start at finite $N$.", kind="misprint",
    tests=f"`test_xor_mixture_has_39_components_of_which_24_are_stable` {MIXED}, "
    "`test_fraction_of_runs_at_the_optimum_and_where_runs_end` in `tests/laws/test_mixtures.py`",
)  # fmt: skip
def xor_share(effort: Effort) -> Found:
    """The share of the exact chain's runs at N = 250, snr = 1000; printed, of the ODE from the limit m = 0, which it never leaves."""
    problem, runs, d = sl.presets.xor_mixture(snr=1000.0, ridge=0.05), effort.runs(1024, 512), 250
    end = sl.simulate(problem, sl.Chain(d), sl.RandomInit(d), t_max=30.0, runs=runs, save=[30.0], seed=2, progress=False)
    number = np.mean([xor_served(a, M) for a, M in zip(end.a.values[:, -1], end.M.values[:, -1], strict=True)])
    stays = np.abs(problem.drift(sl.Overlaps(np.array([1.0, 0.5, -0.7, -1.2]), np.zeros((4, 2)), np.eye(4))).M).max() < 1e-12
    return compare(number, 3 / 32, 0.0 if stays else np.nan, sigma=np.sqrt(3 / 32 * 29 / 32 / runs))


@claim("section 5, Proposition F.3", "39 components of fixed points", "39 connected components for XOR, of which $4! = 24$ are stable")
def components(effort: Effort) -> Found:
    """Every way to give the four units to the clusters, or none, is a fixed point; ways with the same clusters served are
    connected through units that are not used, and 24 of them use all four for different ones. At full effort they are searched for.
    """
    problem = sl.presets.xor_mixture(snr=INF, ridge=0.1)
    if effort.name == "full":
        table = sl.fixed_points(problem, count=128, progress=False)
        return compare([table.components, sum(each.copies for each in table.stable)], [39, 24])
    radius, served, alone = np.sqrt(np.log(1.5)), set(), 0
    places = [None, (0, 1), (0, -1), (1, 1), (1, -1)]
    for way in itertools.combinations_with_replacement(range(5), 4):
        a, M = np.zeros(4), np.zeros((4, 2))
        for j, place in enumerate(way):
            if place:
                r, s = places[place]  # type: ignore[misc]
                a[j] = (1 if r == 0 else -1) * radius / np.sqrt(way.count(place))
                M[j, r] = s * abs(a[j])
        drift = at_infinite_snr(a, M, 0.1, "xor_mixture")
        if max(np.abs(drift.a).max(), np.abs(drift.M).max()) < 1e-9:
            clusters = frozenset(way) - {0}
            served.add(clusters)
            alone += 24 if len(clusters) == 4 else 0
    return compare([len(served) - 1 + alone, alone], [39, 24])


# --- limits at fixed points --------------------------------------------------------------------------------------------------


def block(limit: Any, matrix: np.ndarray, names: tuple[str, ...]) -> np.ndarray:
    which = [limit.names.index(name) for name in names]
    return matrix[np.ix_(which, which)]


def pull_of(a: np.ndarray, alpha: float, weight: float, sign: float) -> np.ndarray:
    """Propositions 4.3 and 5.1 in the order m, v."""
    outward = sign * (alpha - weight * alpha**2) * np.outer(a, a)
    return np.kron(np.ones((2, 2)), outward) + alpha * np.kron(np.array([[-1, 1], [1, -1]]), np.eye(len(a)))


@claim(
    "Propositions 4.3 and 5.1", "drift on the rings",
    r"$+ a_i (\alpha - 2\alpha^2) \sum_k a_k (\tilde v_k + \tilde m_k)$ in the drift",
    right=r"Minus (XOR: $\alpha - 4\alpha^2$, minus). The rings are neutral along themselves and stable across.", kind="misprint",
    tests=f"`test_ring_of_the_binary_mixture_has_the_published_limit`, `test_double_ring_of_xor_has_the_published_limit` {LOCAL}",
)  # fmt: skip
def ring_drift(effort: Effort) -> Found:
    alpha, a = 0.1, np.sqrt(np.log(4)) * np.array([np.cos(0.6), np.sin(0.6)])
    limit = sl.local_limit(sl.presets.binary_mixture(snr=INF, ridge=alpha), sl.Overlaps(a, a[:, None], np.outer(a, a)))
    found = block(limit, limit.drift_matrix, ("M[0,0]", "M[1,0]", "a[0]", "a[1]"))
    return compare(found, pull_of(a, alpha, 2, -1), pull_of(a, alpha, 2, 1))


@claim("Propositions 4.3 and 5.1", "noise on the rings", r"$\tilde\Sigma = \alpha^2a_ia_j$, of rank 1; XOR $3\alpha^2a_ia_j$ and $-\alpha^2a_ia_j$, of rank 2")
def ring_noise(effort: Effort) -> Found:
    alpha, radius = 0.05, sl.theory.effective.ring_radius(0.05, 0.25)
    mu, nu = radius * np.array([np.cos(0.6), np.sin(0.6)]), -radius * np.array([np.cos(0.8), np.sin(0.8)])
    M = np.zeros((4, 2))
    M[:2, 0], M[2:, 1] = mu, nu
    xor = sl.local_limit(sl.presets.xor_mixture(snr=INF, ridge=alpha), sl.Overlaps(np.concatenate([mu, nu]), M, M @ M.T))
    across = block(xor, xor.noise_matrix, ("a[0]", "a[1]", "a[2]", "a[3]"))
    right = alpha**2 * np.block([[3 * np.outer(mu, mu), -np.outer(mu, nu)], [-np.outer(nu, mu), 3 * np.outer(nu, nu)]])
    return compare([*across.ravel(), xor.rank], [*right.ravel(), 2])


@claim(
    "(2.2) for magnified statistics", "noise of statistics with a Hessian", r"$\Sigma = \lim\delta_n J_n V J_n^\top$",
    right=r"A statistic with a Hessian, magnified by $\sqrt n$, also has the fluctuations of the second-order term of a step. The "
    "paper magnifies linear statistics only.",
    kind="misprint", tests=f"`test_chain_and_local_fluctuate_around_a_stable_point_as_the_limit_says` {LOCAL}",
)  # fmt: skip
def magnified(effort: Effort) -> Found:
    """The variance of the squared norm's increment in phase retrieval; printed, that of its first-order term alone."""
    m, lr, noise = 0.3, 0.1, 0.2
    return compare(variances(m, lr, noise)[2], equation_55(m, 2 * lr, noise)[2], equation_55(m, 0.0, noise)[2])


@claim(
    "Definition 2.1 (3)", "second condition of localizability",
    r"$\mathbb{E}\langle\nabla^2 u_i, \nabla H\otimes\nabla H - V\rangle^2 = o(\delta_n^{-1})$",
    right=r"$o(\delta_n^{-3})$. For an overlap $W_i\cdot W_j$ of the mixtures it is the variance of $G_iG_j\lvert x\rvert^2$, of "
    r"order $N^2$; for the length of the rest in spiked matrices and tensors it is that of $\lvert\nabla H\rvert^2$ of a Gaussian "
    r"gradient, of order $N$, which is not $o(N)$ either. And $\delta_n^{-1}$ steps of variance $\delta_n^4$ times it must vanish.",
    kind="misprint",
    tests="`test_presets_meet_the_conditions_and_are_critical_at_one_over_d` in `tests/laws/test_effective.py`",
)  # fmt: skip
def localizable(effort: Effort) -> Found:
    """The measured exponent of N for the binary mixture, which is to be below those of the bound."""
    report = sl.effective_dynamics(sl.presets.binary_mixture()).localizability()
    return compare(report.conditions[-1].measured, 2.9, 1.0, rtol=0, relation="<")


@claim("sections 2.1, 3, 4", "critical step size", r"$\delta_n = \Theta(1/n)$ is critical: there the corrector appears")
def critical_step(effort: Effort) -> Found:
    report = sl.effective_dynamics(sl.presets.spiked_tensor(2, 1.2)).localizability()
    return compare(report.critical_exponent, 1.0, atol=0.02)
