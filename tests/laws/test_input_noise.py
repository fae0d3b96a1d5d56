"""Noise that training adds to inputs: levels against weights in R^d, written out in NumPy, and against each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import pytest
from scipy import stats as st
from scipy.special import erf

import sgdlimits as sl

RUNS, D, STEPS = 3000, 10, 14
GRAM, SHARES, V = np.array([[[0.6]], [[0.4]]]), (0.4, 0.6), np.array([[1.5, 0.3], [0.4, 2.0]])
WEIGHTS, MEANS, SIGMA = np.array([0.3, 0.7]), np.array([[0.5], [-0.5]]), 0.8
M = np.array([[[0.3], [-0.2]], [[0.1], [0.2]]])
Q = np.array([[[0.5, 0.1], [0.1, 0.4]], [[0.6, 0.0], [0.0, 0.3]]])
A = np.array([1.0, -0.7])
FEW = sl.Sobol(6, 2)
SCALE = sl.Steps([7 / D], [1.5, 0.3])


@dataclass(frozen=True)
class Case:
    """Scale of the noise, and what else differs: blocks with variances by class, the algorithm and the batch."""

    scale: Any = 0.9
    blocks: bool = False
    batch: int = 1
    beta: float = 0.0
    clip: float = np.inf
    sign: bool = False

    def problem(self, expectation=FEW, unit="tanh", algorithm=None, means=MEANS, **network):
        own = sl.OnePassSGD(1.5, lr_second=0.5, ridge=0.2)
        own = sl.HeavyBall(1.5, self.beta, batch=self.batch) if self.beta else own
        own = sl.SignSGD(1.5) if self.sign else own
        own = sl.Clipped(sl.OnePassSGD(1.5, batch=self.batch), self.clip) if self.clip < np.inf else own
        variance, shares = (V, SHARES) if self.blocks else (SIGMA**2, None)
        return sl.ProjectionProblem(
            target=sl.Target(sl.CommitteeReadout("erf"), noise=0.2, gram=GRAM if self.blocks else None),
            network=sl.TwoLayer(2, unit, **network),
            loss=sl.SquaredLoss(),
            algorithm=algorithm or own,
            data=sl.inputs.add_noise(sl.mixture(means, WEIGHTS, variance, shares), self.scale),
            expectation=expectation,
        )

    @property
    def start(self):
        return sl.Overlaps(A, M, Q) if self.blocks else sl.Overlaps(A, M[0], Q[0])


CASES = {
    "one sample": Case(),
    "blocks, scheduled scale, momentum": Case(SCALE, blocks=True, batch=2, beta=0.5),
    "clipped batches": Case(batch=2, clip=0.2),
    "signs": Case(SCALE, sign=True),
}


def in_space(case, seed=0, label_of_noisy=False):
    """Overlaps, in each block if there are several, and second layers, after SGD with weights in R^d."""
    rng = np.random.default_rng(seed)
    gram, (M0, Q0) = (GRAM, (M, Q)) if case.blocks else (np.ones((1, 1, 1)), (M[:1], Q[:1]))
    sizes = (4, 6) if case.blocks else (D,)
    variance = V if case.blocks else np.full((2, 1), SIGMA**2)
    e, u = np.zeros(D), np.zeros((RUNS, 2, D))
    ends = np.cumsum(sizes)
    for b, end in enumerate(ends):
        at, root = end - sizes[b], np.sqrt(gram[b, 0, 0])
        m = M0[b] / root
        e[at], u[:, :, at] = root, m[:, 0]
        u[:, :, at + 1 : at + 3] = np.linalg.cholesky(Q0[b] - m @ m.T)
    if case.sign:  # directions along a cosine basis, since coordinates count
        cosines = np.sqrt(2 / D) * np.cos(np.pi * np.outer(np.arange(1, 4), np.arange(D) + 0.5) / D)
        e, u = e[:3] @ cosines, u[:, :, :3] @ cosines
    a, velocity = np.tile(A, (RUNS, 1)), np.zeros_like(u)
    plain = case.clip == np.inf and not case.beta and not case.sign
    for step in range(STEPS):
        t = step * case.batch / D
        scale = float(case.scale(t + 1e-12)) if isinstance(case.scale, sl.Schedule) else case.scale
        c = (rng.random((RUNS, case.batch)) > WEIGHTS[0]).astype(int)
        x = MEANS[c] * e + rng.normal(size=(RUNS, case.batch, D)) * np.sqrt(np.repeat(variance, sizes, axis=1))[c]
        noisy = x + scale * rng.normal(size=x.shape)
        fields = np.einsum("rjd,rid->rij", u, noisy)
        label = erf((noisy if label_of_noisy else x) @ e / np.sqrt(2)) + np.sqrt(0.2) * rng.normal(size=c.shape)
        error = (a[:, None] * np.tanh(fields)).mean(2) - label
        G = error[:, :, None] * a[:, None] * (1 - np.tanh(fields) ** 2) / 2
        slope = np.einsum("rij,rid->rjd", G, noisy) / case.batch
        slope = np.sign(slope) if case.sign else slope
        size = np.sqrt((slope**2).sum((1, 2)) / D)[:, None, None]
        velocity = case.beta * velocity - 1.5 / D * (slope * np.minimum(1, case.clip / size) + plain * 0.2 * u)
        if plain:
            a = a - 0.5 / D * ((error[:, :, None] * np.tanh(fields)).mean(1) / 2 + 0.2 * a)
        u = u + velocity
    blocks = np.split(u, ends[:-1], axis=2), np.split(e, ends[:-1])
    M_end = np.stack([U @ E for U, E in zip(*blocks, strict=True)], axis=1)[..., None]
    Q_end = np.stack([U @ U.swapaxes(1, 2) for U in blocks[0]], axis=1)
    return (M_end, Q_end, a) if case.blocks else (M_end[:, 0], Q_end[:, 0], a)


def p_values(ours, theirs):
    """p-values of KS tests, and gaps of the first two moments in standard errors, of each statistic that varies."""
    found = []
    for one, other in zip(ours, theirs, strict=True):
        for x, y in zip(one.reshape(RUNS, -1).T, other.reshape(RUNS, -1).T, strict=True):
            if np.ptp(x) < 1e-12 and np.ptp(y) < 1e-12:
                np.testing.assert_allclose(x[0], y[0], atol=1e-12)
                continue
            found.append(st.ks_2samp(x, y).pvalue)
            for f in (lambda u: u, lambda u: (u - u.mean()) ** 2):
                gap = (f(x).mean() - f(y).mean()) / np.sqrt((f(x).var() + f(y).var()) / RUNS)
                found.append(2 * st.norm.sf(abs(gap)))
    return np.array(found)


def end_of(case, level, seed=3):
    t = STEPS * case.batch / D
    run = sl.simulate(case.problem(), level, case.start, t_max=t, runs=RUNS, seed=seed, save=2, progress=False)
    memory = [run[name].values[:, -1] for name in ("M", "Q")]
    return [*memory, run.a.values[:, -1] if "t" in run.a.dims else np.tile(A, (RUNS, 1))]


LEVELS = [(name, level) for name in CASES for level in (sl.Chain(D), sl.SGD(D)) if (name, level.name) != ("signs", "chain")]


@pytest.mark.parametrize(("name", "level"), LEVELS, ids=lambda part: getattr(part, "name", part))
def test_levels_have_the_law_of_weights_in_r_d(name, level):
    """A false alarm of one p-value below 1e-5 has a rate below 1e-3 over all statistics."""
    case = CASES[name]
    assert p_values(end_of(case, level), in_space(case, seed=1)).min() > 1e-5


def test_labels_of_noisy_inputs_have_another_law():
    """The control: with the label of the noisy input the laws differ by far more than the tests above allow."""
    case = CASES["one sample"]
    assert p_values(end_of(case, sl.Chain(D)), in_space(case, seed=1, label_of_noisy=True)).min() < 1e-12


DRIFTS = {
    "blocks and classes with means": Case(blocks=True).problem(sl.Sobol(12)),
    "averages": Case().problem(None, unit="erf", means=0 * MEANS, algorithm=sl.Averaged(sl.OnePassSGD(1.0), decay=0.5)),
    "relu with dropout": Case(blocks=True).problem(None, unit="relu", dropout=0.2),
}


@pytest.mark.parametrize("name", DRIFTS)
def test_drift_is_the_mean_increment_of_the_chain(name):
    """One step of many runs of the exact chain at large d, minus the start, times d: five standard errors."""
    own, d, runs = DRIFTS[name], 10**7, 20_000
    start = (Case(blocks=True) if own.data.blocks else Case()).start
    step = sl.simulate(own, sl.Chain(d), start, t_max=1 / d, runs=runs, seed=2, save=[1 / d], progress=False)
    drift = own.drift(own.coordinates.in_limit(start)).of("student")
    for each in ("a", "M", "Q"):
        change = d * (step[each].values[:, -1] - np.asarray(getattr(start, each)))
        gap = np.abs(change.mean(0) - np.asarray(getattr(drift, each)))
        assert (gap < 5 * change.std(0) / np.sqrt(runs) + 1e-4).all(), each


@pytest.mark.full
@pytest.mark.parametrize("blocks", [False, True])
def test_covariance_is_that_of_increments_of_the_chain(blocks):
    own = Case(blocks=blocks).problem(None, unit="erf", algorithm=sl.OnePassSGD(1.5), means=0 * MEANS)
    start, d, runs = Case(blocks=blocks).start, 10**7, 20_000
    step = sl.simulate(own, sl.Chain(d), start, t_max=1 / d, runs=runs, seed=2, save=[1 / d], progress=False)
    vectors = np.stack(
        [own.vector(sl.Overlaps(*(step[each].values[i, -1] for each in ("a", "M", "Q")))) for i in range(0, runs, 2)]
    )
    change = d * (vectors - np.asarray(own.vector(start)))
    scale = np.sqrt(np.outer(change.var(0), change.var(0)))
    np.testing.assert_allclose(own.covariance(start) / scale, np.cov(change.T) / scale, atol=0.15)


@pytest.mark.full
def test_sde_has_the_moments_of_the_chain():
    """With class means, blocks and a schedule: means within five standard errors, deviations within 30%, four of theirs."""
    case, d, runs = CASES["blocks, scheduled scale, momentum"], 400, 200
    own = case.problem(sl.Sobol(10), algorithm=sl.OnePassSGD(1.5))
    ours, theirs = (
        sl.simulate(own, level, case.start, t_max=1.0, runs=runs, seed=seed, save=2, progress=False)
        for seed, level in enumerate((sl.SDE(d, dt=0.05), sl.Chain(d)))
    )
    for each in ("M", "Q"):
        x, y = (data[each].values[:, -1].reshape(runs, -1) for data in (ours, theirs))
        assert (np.abs(x.mean(0) - y.mean(0)) < 5 * np.sqrt((x.var(0) + y.var(0)) / runs) + 3e-3).all()
        np.testing.assert_allclose(x.std(0), y.std(0), rtol=0.3)


def test_noise_on_the_inputs_of_a_linear_unit_is_a_ridge():
    """E[(u.(x + tau xi) - y)^2] has tau^2 |u|^2 more: the drift of M is that of a ridge of strength tau^2 exactly."""
    tau, stats = 0.7, sl.Overlaps([1.0], [[0.4]], [[0.9]])
    make = lambda data, ridge: sl.ProjectionProblem(
        sl.Target(sl.CommitteeReadout("linear"), noise=0.1), sl.TwoLayer(1, "linear"), sl.SquaredLoss(),
        sl.OnePassSGD(0.5, ridge=ridge), data=data,
    )  # fmt: skip
    noisy = make(sl.inputs.add_noise(sl.inputs.gaussian(), tau), 0.0)
    clean = make(None, tau**2)
    (ours, corrector), (theirs, _) = noisy.drift_parts(stats), clean.drift_parts(stats)
    np.testing.assert_allclose(ours.M, theirs.M, rtol=1e-12)
    np.testing.assert_allclose(ours.Q, theirs.Q, rtol=1e-12)
    error = 1 - 2 * 0.4 + 0.9 + 0.1  # the mean square of u.x - y
    np.testing.assert_allclose(corrector.Q[0, 0], 0.25 * (1 + tau**2) * (error + tau**2 * 0.9), rtol=1e-12)
    np.testing.assert_allclose(noisy.risk(stats), error / 2, rtol=1e-12)


@pytest.mark.parametrize("level", [sl.Chain(50), sl.SGD(50), sl.ODE()], ids=["chain", "sgd", "ode"])
def test_a_constant_schedule_is_the_number(level):
    case, nodes = Case(0.6), sl.Sobol(10) if level.name == "ode" else FEW
    paths = [
        sl.simulate(Case(scale).problem(nodes), level, case.start, t_max=0.5, runs=3, save=3, progress=False)
        for scale in (0.6, sl.Steps([], [0.6]))
    ]
    for name in ("M", "Q", "a", "risk"):
        if isinstance(level, sl.ODE):
            np.testing.assert_allclose(paths[0][name], paths[1][name], rtol=1e-9)
        else:
            np.testing.assert_array_equal(paths[0][name], paths[1][name])


@pytest.mark.full
def test_flow_is_differentiable_in_the_scale():
    end = lambda scale: sl.flow(Case(scale).problem(None, means=0 * MEANS, unit="erf"), Case().start, 1.0).Q[0, 0]
    slope = jax.grad(end)(0.7)
    np.testing.assert_allclose(slope, (end(0.7 + 1e-4) - end(0.7 - 1e-4)) / 2e-4, rtol=1e-6)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: sl.inputs.add_noise(sl.inputs.gaussian(), -0.5), "scale must be"),
        (lambda: sl.inputs.add_noise(sl.mixture([[1.0]], variance=0.0), 0.5), "equal the means"),
        (lambda: sl.inputs.add_noise(sl.inputs.add_noise(sl.inputs.gaussian(), 0.1), 0.5), "Add noise once"),
        (
            lambda: sl.simulate(Case(lambda t: 2.0 - t).problem(), sl.Chain(50), Case().start, t_max=3.0, progress=False),
            "input_noise leaves its domain",
        ),
        (lambda: sl.simulate(Case().problem(), sl.SGD(50, reuse=10), Case().start, t_max=1.0), "fresh at each step"),
        (
            lambda: sl.simulate(Case().problem(algorithm=sl.Muon(0.1)), sl.ODE(), Case().start, t_max=1.0),
            "limit of Muon does not support input noise",
        ),
        (lambda: sl.hessian_spectrum(Case().problem(), Case().start, 100), "Hessian does not support input noise"),
        (lambda: sl.trust(Case().problem(None), Case().start, 100, 1.0), "expansion in 1/d does not support input noise"),
        (lambda: sl.recommended_lr(Case().problem(None), 100), "overlap does not support input noise|Use SGD"),
        (lambda: sl.latex(Case().problem()), "single variance|blocks of variances"),
        (
            lambda: sl.simulate(Case().problem(), sl.MeanField(), Case().start, t_max=1.0),
            "MeanField does not support input",
        ),
    ],
)
def test_what_input_noise_does_not_support_is_refused_in_a_sentence(make, words):
    with pytest.raises(sl.BadInput, match=words):
        make()
