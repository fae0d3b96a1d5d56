"""Effective dynamics from a loss and a sampler: beside closed forms, steps in NumPy, and what must and must not close."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sgdlimits as sl

LR, RIDGE = 0.7, 0.1
MEANS = {
    "binary_mixture": ([[1.0], [-1.0]], [1.0, 0.0], 2),
    "xor_mixture": ([[1, 0], [-1, 0], [0, 1], [0, -1]], [1, 1, 0, 0], 4),
}


class SpikedLoss:
    """A spiked k-tensor along the first axis, by its loss alone."""

    def __init__(self, order: int, snr: float = 1.2) -> None:
        self.order, self.problem = order, sl.presets.spiked_tensor(order, snr, lr=LR)
        self.snr = snr

    def loss(self, x, Y):
        power = x
        for _ in range(self.order - 1):
            power = jnp.multiply.outer(power, x)
        return ((Y - power) ** 2).sum()

    def sample(self, key, d):
        return jax.random.normal(key, (d,) * self.order).at[(0,) * self.order].add(self.snr)

    def statistics(self, x):
        return {"m": x[0], "r2": (x[1:] ** 2).sum()}

    def at(self, key, d):
        return jax.random.normal(key, (d,)) / np.sqrt(d) + 0.6 * jnp.eye(d)[0]

    def stats(self, x):
        return sl.Spike(**self.statistics(x))

    def share_of_g(self, stats, d):
        """Of the limit of g, at d: the noise has d - 1 directions outside v, of which that of x has k times the variance."""
        return (d - 1 + (self.order - 1) * stats.r2 / stats.squared_norm) / d


class MixtureLoss:
    """Two-layer relu networks on Gaussian classes, by their loss alone; statistics in the order of the package's covariance."""

    def __init__(self, preset: str, snr: float = 2.0) -> None:
        self.means, self.labels, self.p = (np.asarray(each, float) for each in MEANS[preset])
        self.p, self.k, self.snr = int(self.p), self.means.shape[1], snr
        self.problem = getattr(sl.presets, preset)(snr=snr, ridge=RIDGE, lr=LR)
        self.upper = np.triu_indices(self.p)

    def loss(self, w, x):
        output = w["a"] @ jax.nn.relu(w["W"] @ x["x"])
        penalty = RIDGE / 2 * ((w["a"] ** 2).sum() + (w["W"] ** 2).sum())
        return jnp.logaddexp(0.0, output) - x["y"] * output + penalty

    def sample(self, key, d):
        which, noise = jax.random.split(key)
        c = jax.random.randint(which, (), 0, len(self.labels))
        x = jax.random.normal(noise, (d,)) / jnp.sqrt(self.snr)
        return {"x": x.at[: self.k].add(jnp.asarray(self.means)[c]), "y": jnp.asarray(self.labels)[c]}

    def statistics(self, w):
        return jnp.concatenate([w["W"][:, : self.k].ravel(), (w["W"] @ w["W"].T)[self.upper], w["a"]])

    def at(self, key, d):
        one, two, three = jax.random.split(key, 3)
        W = jax.random.normal(one, (self.p, d)) / np.sqrt(d)
        W = W.at[:, : self.k].add(0.7 * jax.random.normal(two, (self.p, self.k)))
        return {"W": W, "a": jax.random.normal(three, (self.p,))}

    def stats(self, w):
        return sl.Overlaps(w["a"], w["W"][:, : self.k], w["W"] @ w["W"].T)

    def share_of_g(self, stats, d):
        """The limit itself: what comes from the few directions of weights and means is below the errors."""
        return 1.0


MODELS = {
    "matrix": lambda: SpikedLoss(2),
    "tensor": lambda: SpikedLoss(3),
    "binary_mixture": lambda: MixtureLoss("binary_mixture"),
    "xor_mixture": lambda: MixtureLoss("xor_mixture"),
}


def sampled(model, **more):
    return sl.effective_dynamics(
        loss=model.loss, sample=model.sample, statistics=model.statistics, **{"at": model.at, "lr": LR, **more}
    )


def standard_errors(ours, exact):
    """How many standard errors each number of an estimate is away from the closed form."""
    value, error = (np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(part)]) for part in (ours.value, ours.error))
    exact = np.ravel(exact)
    np.testing.assert_allclose(value[error == 0], exact[error == 0], atol=1e-12)
    return np.abs(value - exact)[error > 0] / error[error > 0]


@pytest.mark.parametrize(
    ("name", "d", "points", "samples"),
    [
        ("matrix", 40, 5, 2048),
        ("binary_mixture", 200, 5, 4096),
        ("matrix", 200, 5, 2048),
        ("tensor", 30, 5, 2048),
        ("tensor", 45, 5, 1024),
        ("binary_mixture", 800, 5, 4096),
        ("xor_mixture", 200, 5, 4096),
        ("xor_mixture", 800, 5, 4096),
    ],
)
def test_estimates_agree_with_closed_forms(name, d, points, samples, say):
    """Each number is within four standard errors, which of 2420 normal ones one exceeds in a try of seven; seeds are fixed."""
    model = MODELS[name]()
    exact = sl.effective_dynamics(model.problem)
    flat = lambda stats: model.problem.vector(stats)
    dynamics = sampled(model, d=d, samples=samples)
    away = {"f": [], "g": [], "Sigma": []}
    weights = [dynamics.draw_weights(i) for i in range(points)]
    for w, ours in zip(weights, dynamics.estimates_of(weights), strict=True):
        stats = model.stats(w)
        away["f"].append(standard_errors(ours.f, flat(exact.f(stats))))
        away["g"].append(standard_errors(ours.g, flat(exact.g(stats)) * model.share_of_g(stats, d)))
        away["Sigma"].append(standard_errors(ours.Sigma, exact.Sigma(stats)))
    worst = {part: np.concatenate(rows) for part, rows in away.items()}
    say(f"{name}, d = {d}: " + ", ".join(f"{part} {each.max():.2f} of {each.size}" for part, each in worst.items()))
    for each in worst.values():
        assert each.max() < 4


# --- one step, in NumPy -------------------------------------------------------------------------------------------------


def relu_gradients(a, W, x, y):
    """Gradients of the cross-entropy with the ridge by hand: of the second layer and of the weights, for each sample."""
    fields = x @ W.T
    on = fields > 0
    error = 1 / (1 + np.exp(-(fields * on) @ a)) - y
    return error[:, None] * fields * on + RIDGE * a, (error[:, None] * on * a)[:, :, None] * x[:, None] + RIDGE * W


@pytest.mark.full
def test_drift_is_that_of_one_step_in_numpy(say):
    """A step's mean increment of any statistic, third order and the square of the mean gradient apart, is h/d."""
    model, d, n, rng = MODELS["binary_mixture"](), 300, 40_000, np.random.default_rng(0)
    chosen = lambda w: {"cosine": w["W"][0, 0] / jnp.linalg.norm(w["W"][0]), "product": w["a"][0] * jnp.linalg.norm(w["W"][0])}
    model.statistics = chosen
    dynamics = sampled(model, d=d, samples=16_384)
    w = dynamics.draw_weights(1)
    w["W"], w["a"] = w["W"].copy(), np.array([2.0, -0.5])
    w["W"][0, 0] = 1.0
    sign = rng.choice([-1.0, 1.0], n)
    x = rng.normal(size=(n, d)) / np.sqrt(model.snr)
    x[:, 0] += sign
    a, W = np.asarray(w["a"]), np.asarray(w["W"])
    mine = lambda a, W: (
        W[..., 0, 0] / np.linalg.norm(W[..., 0, :], axis=-1),
        a[..., 0] * np.linalg.norm(W[..., 0, :], axis=-1),
    )
    steps = [[], []]
    for part in np.array_split(np.arange(n), 20):
        of_a, of_W = relu_gradients(a, W, x[part], (sign[part] > 0).astype(float))
        for i, (new, old) in enumerate(zip(mine(a - LR / d * of_a, W - LR / d * of_W), mine(a, W), strict=True)):
            steps[i].append(d * (new - old))
    ours = dynamics.estimates(w)
    for name, rows in zip(("cosine", "product"), map(np.concatenate, steps), strict=True):
        gap = abs(rows.mean() - float(ours.h[name]))
        error = np.hypot(rows.std() / np.sqrt(n), float(ours.h.error[name]))
        noise, i = rows.var(), list(ours.names).index(name)
        of_noise = np.hypot(((rows - rows.mean()) ** 2).std() / np.sqrt(n), ours.Sigma.error[i, i])
        say(f"{name}: h {ours.h[name]!r}, of a step {rows.mean():.4f} ± {error:.4f}; g {ours.g[name]!r}")
        say(f"{name}: Sigma {ours.Sigma[i, i]!r}, of a step {noise:.4f} ± {of_noise:.4f}")
        assert gap < 4 * error + 5 / d
        assert abs(noise - ours.Sigma.value[i, i]) < 4 * of_noise + 10 / d * noise
        assert abs(float(ours.g[name])) > 4 * error


def test_standard_errors_are_those_of_the_estimates(say):
    """Deviations of 25 seeds from closed forms, relative to their standard errors, have unit spread: 0.85 to 1.15.

    At two weights the 250 numbers are partly the same samples, so that their spread is known to about 6 %.
    """
    model, d = MODELS["matrix"](), 12
    exact, at = sl.effective_dynamics(model.problem), sampled(model, d=d)
    weights = [at.draw_weights(i) for i in range(2)]
    away = []
    for seed in range(25):
        for w, ours in zip(weights, sampled(model, d=d, samples=512, seed=seed).estimates_of(weights), strict=True):
            stats = model.stats(w)
            pairs = [
                *((ours.f[name], getattr(exact.f(stats), name)) for name in ("m", "r2")),
                (ours.g["r2"], exact.g(stats).r2 * model.share_of_g(stats, d)),
                *((ours.volatility[i, j], exact.Sigma(stats)[i, j]) for i, j in ((0, 0), (1, 1))),
            ]
            away += [(float(mine) - float(theirs)) / float(mine.error) for mine, theirs in pairs]
    say(f"{len(away)} numbers: mean {np.mean(away):.3f}, deviation {np.std(away):.3f}, largest {np.abs(away).max():.2f}")
    assert len(away) == 250
    assert abs(np.mean(away)) < 0.3
    assert 0.85 < np.std(away) < 1.15


def test_a_sampler_without_its_key_is_told_in_the_table():
    model, Y = MODELS["matrix"](), np.random.default_rng(0).normal(size=(4, 4))
    model.sample = lambda key, d: jnp.asarray(Y)
    assert "all of them the same: sample does not use its key" in repr(sampled(model, d=4, samples=64))
    assert "all of them the same" not in repr(sampled(MODELS["matrix"](), d=4, samples=64))


def test_a_list_of_plain_numbers_is_one_array_of_weights():
    model = MODELS["matrix"]()
    listed, array = (sampled(model, at=at, samples=64).f() for at in ([1, 0, 0.5], np.array([1.0, 0, 0.5])))
    assert listed.value == array.value


def test_chunks_and_seeds(monkeypatch):
    """The same seed gives the same numbers however samples are split, and another seed others within the errors."""
    model = MODELS["matrix"]()
    small = sampled(model, d=8, samples=200)
    first = small.h()
    monkeypatch.setattr("sgdlimits.analysis.sampled.moments.FLOATS_PER_CHUNK", 2**11)
    again, other = sampled(model, d=8, samples=200).h(), sampled(model, d=8, samples=200, at=small.weights, seed=1).h()
    for name in ("m", "r2"):
        np.testing.assert_allclose(again.value[name], first.value[name], rtol=1e-12)
        assert first.value[name] != other.value[name]
        assert abs(first.value[name] - other.value[name]) < 5 * np.hypot(first.error[name], other.error[name])


def test_step_size_and_clock_scale_the_parts_of_the_dynamics():
    model = MODELS["matrix"]()
    plain, smaller, slower = (sampled(model, d=8, samples=64, **more) for more in ({}, {"exponent": 2}, {"slowed": 0.5}))
    for part, by_step, by_clock in (("f", 1, 8**0.5), ("g", 1 / 8, 8**0.5), ("volatility", 1, 8**0.5)):
        of = lambda dynamics, part=part: jax.tree.leaves(getattr(dynamics, part)().value)[-1]
        np.testing.assert_allclose(of(smaller), by_step * of(plain), rtol=1e-10)
        np.testing.assert_allclose(of(slower), by_clock * of(plain), rtol=1e-10)
    np.testing.assert_allclose(smaller.diffusion(), smaller.Sigma().value / 64, rtol=1e-12)


# --- closure ------------------------------------------------------------------------------------------------------------

PARTIAL = {"m": lambda x: {"m": x[0]}, "squared norm": lambda x: {"norm2": (x**2).sum()}}


@pytest.mark.parametrize(
    "statistics", [PARTIAL["m"], pytest.param(PARTIAL["squared norm"], marks=pytest.mark.full)], ids=[*PARTIAL]
)
def test_statistics_that_do_not_close_are_found_out(statistics):
    model = MODELS["matrix"]()
    model.statistics = statistics
    found = sampled(model, d=20, samples=512).closure(references=2)
    assert not found.closed
    assert "NO function of the statistics: at two weights that share all of them" in repr(found)
    one, other = found.pair[0]
    np.testing.assert_allclose(*(jax.tree.leaves(statistics(w))[0] for w in (one, other)), rtol=1e-8)


@pytest.mark.full
def test_closure_is_judged_right_in_twenty_of_twenty_tries(say):
    """Least squares: the squared distance closes on inputs of equal variance, and not on others."""

    def sample(key, d, spread):
        x = jax.random.normal(key, (d + 1,))
        x, z = x[:d] / jnp.sqrt(1 + spread * jnp.arange(d) / d), x[d]
        return {"x": x, "y": x.sum() / jnp.sqrt(d) + 0.1 * z}

    loss = lambda w, x: (x["x"] @ w - x["y"]) ** 2 / 2
    distance = lambda w: {"distance": ((w - 1 / jnp.sqrt(w.size)) ** 2).sum()}
    at = lambda key, d: 2 * jax.random.normal(key, (d,)) / jnp.sqrt(d)
    for spread, closed in ((4.0, False), (0.0, True)):
        family = dict(loss=loss, sample=lambda key, d, s=spread: sample(key, d, s), statistics=distance, at=at, lr=0.5, d=50)
        tries = [sl.effective_dynamics(**family, samples=2048, seed=seed).closure() for seed in range(20)]
        say(f"unequal by {spread:g}: differences {min(t.share[0] for t in tries):.3f} to {max(t.share[0] for t in tries):.3f}")
        assert all(each.closed == closed for each in tries)


@pytest.mark.full
@pytest.mark.parametrize("name", ["matrix", "binary_mixture", "xor_mixture"])
def test_statistics_of_the_paper_close(name):
    assert sampled(MODELS[name](), d=40, samples=2048).closure().closed


# --- fits ---------------------------------------------------------------------------------------------------------------


@pytest.mark.full
def test_matrix_pca_by_its_loss_alone_has_the_published_drift(say):
    """Equation (3.1) with k = 2, coefficient by coefficient; at d the corrector is 8 ((d - 1) m^2 + d r2)/d."""
    model, d = MODELS["matrix"](), 40
    fit = sampled(model, d=d, samples=4096).fit(3, region={"m": (-1.3, 1.3), "r2": (0.05, 2.0)})
    say(repr(fit))
    lr, snr = LR, model.snr
    exact = {
        ("population", "m"): {"m": 4 * snr * lr, "m^3": -4 * lr, "m r2": -4 * lr},
        ("population", "r2"): {"m^2 r2": -8 * lr, "r2^2": -8 * lr},
        ("corrector", "m"): {},
        ("corrector", "r2"): {"m^2": 8 * lr**2 * (d - 1) / d, "r2": 8 * lr**2},
    }
    for part, terms in exact.items():
        for product, (value, error) in fit.terms(*part).items():
            assert abs(value - terms.get(product, 0.0)) < 4 * error + 1e-12, (part, product)
    assert max(fit.misfit.values()) < 1.5


@pytest.mark.full
def test_fitted_and_tabulated_problems_follow_the_problem_itself(say):
    """ODE, SDE, fixed points and exit times of matrix PCA from its loss alone, beside those of the problem."""
    model, d = MODELS["matrix"](), 60
    dynamics, start = sampled(model, d=d, samples=8192), {"m": 0.2, "r2": 0.5}
    fit = dynamics.fit(3, region={"m": (-1.3, 1.3), "r2": (0.05, 2.0)})
    grid = dynamics.tabulate({"m": np.linspace(-1.3, 1.3, 9), "r2": np.linspace(0.05, 2.0, 7)})
    exact = sl.simulate(model.problem, sl.ODE(), sl.Spike(**start), t_max=3, save=7)
    for each in (fit, grid):
        ode = sl.simulate(each.problem, sl.ODE(), each.problem.state(**start), t_max=3, save=7)
        say(f"m {ode.m.values[0].round(3)}, exact {exact.m.values[0].round(3)}")
        np.testing.assert_allclose(ode.m, exact.m, atol=0.06)
        np.testing.assert_allclose(ode.r2, exact.r2, atol=0.06)
    noisy = lambda problem, start: sl.simulate(problem, sl.SDE(d=1000), start, t_max=6, runs=256, save=121, seed=1)
    ours = sl.exit_times(noisy(fit.problem, fit.problem.state(m=0.0, r2=0.6)), lambda u: u.u[0] ** 2 - 0.04).t
    theirs = sl.exit_times(noisy(model.problem, sl.Spike(m=0.0, r2=0.6)), lambda u: u.m**2 - 0.04).t
    say(f"exit times {float(ours.mean()):.3f}, exact {float(theirs.mean()):.3f}")
    assert float(ours.mean()) == pytest.approx(float(theirs.mean()), rel=0.15)
    points = sl.fixed_points(fit.problem, count=64, progress=False)
    assert sorted(each.stability for each in points) == ["stable", "stable", "unstable", "unstable"]
    away = [each.point.u[0] for each in points if each.stability == "stable"]
    np.testing.assert_allclose(np.abs(away), np.sqrt(model.snr - LR), atol=0.06)


# --- averages over fixed samples ----------------------------------------------------------------------------------------


@pytest.mark.full
def test_xor_has_39_components_by_its_loss_alone(say):
    """Four units and all 12 weights as statistics, in the limit without noise in the clusters: one point of each is a sample.

    Units start on an axis each, as they end: a field of the other label's clusters is zero, where relu has its kink.
    """
    clusters, labels = np.array([[1.0, 0], [-1, 0], [0, 1], [0, -1]]), np.array([1.0, 1, 0, 0])

    def loss(w, x):
        output = jax.nn.relu(x @ w["W"].T) @ w["a"]
        return (jnp.logaddexp(0.0, output) - labels * output).mean() + 0.05 * ((w["a"] ** 2).sum() + (w["W"] ** 2).sum())

    dynamics = sl.effective_dynamics(
        loss=loss, sample=lambda key, d: jnp.asarray(clusters), statistics=lambda w: w, lr=1.0, samples=64,
        at={"a": np.ones(4), "W": np.ones((4, 2)) / 2},
    )  # fmt: skip
    rng, count = np.random.default_rng(0), 160
    axis, on = rng.integers(2, size=(count, 4)), rng.random((count, 4)) < rng.choice([0.3, 0.6, 1, 1], (count, 1))
    size = rng.choice([0.3, 1, 2.0], (count, 1)) * np.abs(rng.normal(size=(count, 4))) * on
    W = (size * rng.choice([-1, 1], (count, 4)))[:, :, None] * np.eye(2)[axis]
    starts = sl.Values(np.concatenate([W.reshape(count, 8), size * (1 - 2 * axis)], axis=1))

    def moved(rows, second):
        return lambda s: sl.Values(jnp.concatenate([rows(s.u[:8].reshape(4, 2)).ravel(), second(s.u[8:])]))

    orders = [np.array(order) for order in ([1, 0, 2, 3], [1, 2, 3, 0])]
    symmetries = [moved(lambda W, o=o: W[o], lambda a, o=o: a[o]) for o in orders]
    symmetries += [moved(lambda W: W * jnp.array([-1, 1]), lambda a: a), moved(lambda W: W[:, ::-1], lambda a: -a)]
    table = sl.fixed_points(dynamics.empirical(samples=2), starts=starts, symmetries=symmetries, progress=False)
    say(table)
    assert table.components == 39
    assert sum(each.copies for each in table.stable) == 24
    assert sorted((each.dimension, each.copies) for each in table) == [(0, 1), (0, 24), (1, 4), (2, 2), (2, 4), (3, 4)]


@pytest.mark.full
def test_averages_over_fixed_samples_are_the_estimates_and_a_differentiable_drift(say):
    model = MODELS["matrix"]()
    dynamics = sampled(model, d=30, samples=4096, lr=1.0)
    problem, exact = dynamics.empirical(4096), sl.presets.spiked_tensor(2, model.snr)
    state, ours = sl.Values([0.3, 0.5]), sl.Spike(0.3, 0.5)
    weights = np.zeros(30)
    weights[:2] = 0.3, np.sqrt(0.5)
    here = dynamics.estimates(weights)
    population, corrector = problem.drift_parts(state)
    for row, part, value in ((population, here.f, -1.0), (corrector, here.g, 1.0)):
        for i, name in enumerate(("m", "r2")):
            assert abs(float(row.u[i]) - value * float(part[name])) < 5 * np.sqrt(2) * float(part.error[name]) + 1e-9
    slopes = jax.jacfwd(lambda u: problem.drift(sl.Values(u)).u)(jnp.array([0.3, 0.5]))
    theirs = jax.jacfwd(lambda u: jnp.stack(jax.tree.leaves(exact.drift(sl.Spike(*u)))))(jnp.array([0.3, 0.5]))
    say(f"slopes {np.round(slopes, 2).tolist()}, exact {np.round(theirs, 2).tolist()}; {ours}")
    np.testing.assert_allclose(slopes, theirs, atol=0.8)
    np.testing.assert_allclose(problem.covariance(state), exact.covariance(ours), rtol=0.2, atol=0.4)


# --- localizability -----------------------------------------------------------------------------------------------------


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "dimensions", "samples"), [("matrix", (16, 32, 64, 128), 8192), ("binary_mixture", (50, 150, 450, 1350), 16_384)]
)
def test_exponents_agree_with_those_of_the_exact_laws(name, dimensions, samples, say):
    model = MODELS[name]()
    found = sampled(model, d=dimensions[0], samples=samples).localizability(dimensions)
    exact = sl.effective_dynamics(model.problem).localizability()
    say(repr(found))
    assert found.passed
    assert found.limit == "ballistic"
    assert found.critical_exponent == pytest.approx(1.0, abs=0.05)
    for ours, theirs in zip(found.conditions, exact.conditions, strict=True):
        assert ours.measured == pytest.approx(theirs.measured, abs=0.05), ours.name


@pytest.mark.full
def test_a_growing_signal_has_a_diffusive_limit_of_the_magnified_overlap(say):
    """A 3-tensor with snr = Lambda sqrt(d): u = sqrt(d) m has the drift 2 u (k Lambda u - k r^4) and the noise 4 k r^4."""
    Lambda, k = 1.5, 3

    def sample(key, d):
        return jax.random.normal(key, (d, d, d)).at[0, 0, 0].add(Lambda * np.sqrt(d))

    def statistics(x, d):
        return {"u": jnp.sqrt(d) * x[0], "r2": (x[1:] ** 2).sum()}

    at = lambda key, d: (jax.random.normal(key, (d,)) / np.sqrt(d)).at[0].multiply(0.5)  # terms in u^2/d stay small
    dynamics = sl.effective_dynamics(
        loss=SpikedLoss(3).loss, sample=sample, statistics=statistics, at=at, lr=1.0, d=16, samples=1024
    )
    found = dynamics.localizability((16, 32, 64), states=3)
    say(repr(found))
    assert found.passed
    assert found.limit == "diffusive"
    plain = sl.effective_dynamics(
        loss=SpikedLoss(3).loss, sample=lambda key, d: sample(key, d).at[0, 0, 0].multiply(10), lr=1.0, d=8, samples=1024,
        statistics=SpikedLoss(3).statistics, at=lambda key, d: at(key, d).at[0].set(0.7),
    )  # fmt: skip
    refused = plain.localizability((8, 16, 32), states=2)
    say(repr(refused))
    assert not refused.passed
    assert refused.conditions[2].measured == pytest.approx(0.5, abs=0.1)
    assert refused.limit == "none"
    here = dynamics.with_d(64).estimates()
    u, r2 = float(here.u["u"]), float(here.u["r2"])
    R2 = r2 + u**2 / 64
    assert abs(float(here.h["u"]) - 2 * u * (k * Lambda * u - k * R2**2)) < 4 * float(here.h.error["u"])
    assert abs(here.diffusion.value[1, 1] - 4 * (k * R2**2 + k * (k - 1) * R2 * u**2 / 64)) < 4 * here.diffusion.error[1, 1]


def test_slower_time_shows_the_limit_of_a_statistic_that_only_diffuses():
    """For L = w.x the first weight is a random walk: nothing on the scale of d samples, and a diffusion on that of d^2."""
    family = dict(
        loss=lambda w, x: w @ x, sample=lambda key, d: jax.random.normal(key, (d,)), statistics=lambda w: {"w": w[0]}, lr=0.5,
        at=lambda key, d: jax.random.normal(key, (d,)) / np.sqrt(d), d=8, samples=1024,
    )  # fmt: skip
    plain, slow = (sl.effective_dynamics(**family, slowed=slowed) for slowed in (0.0, 1.0))
    found = [each.localizability((8, 16, 32), states=2) for each in (plain, slow)]
    assert [each.limit for each in found] == ["ballistic, without corrector", "diffusive, without corrector"]
    assert found[1].critical_exponent == pytest.approx(1.0, abs=0.05)
    assert slow.with_d(32).diffusion()[0, 0] == pytest.approx(0.25, rel=0.2)


@pytest.mark.full
def test_moments_of_heavy_tails_are_neither_zero_nor_known():
    """Of three degrees of freedom the fourth moment is infinite, and no number of samples shows more than that it is large."""

    def sample(key, d):
        normal, length = jax.random.split(key)
        return jax.random.normal(normal, (d,)) * jnp.sqrt(3 / jax.random.chisquare(length, 3.0))

    found = sl.effective_dynamics(
        loss=lambda w, x: jnp.logaddexp(0.0, w @ x), sample=sample, statistics=lambda w: {"norm2": (w**2).sum()}, lr=0.5,
        at=lambda key, d: jax.random.normal(key, (d,)) / np.sqrt(d), d=8, samples=512,
    ).localizability((8, 16, 32), states=2)  # fmt: skip
    fourth = found.conditions[3]
    assert fourth.measured > -np.inf
    assert fourth.name in found.uncertain
    assert "hardly determine the fourth moment of the first-order term" in repr(found)


def test_growth_of_exact_powers_and_of_shifted_ones():
    from sgdlimits.analysis.sampled.family import fit_growth

    d = np.array([20.0, 40.0, 80.0, 160.0])
    for power in (0.0, 0.5, 2.0):
        assert fit_growth(d, 3 * d**power, 0.01 * d**power).exponent == pytest.approx(power, abs=1e-6)
        assert fit_growth(d, (d + 30) ** power, 1e-3 * d**power).exponent == pytest.approx(power, abs=0.01)
    assert fit_growth(d, 0 * d, 1 + 0 * d).exponent == -np.inf


# --- what is refused ----------------------------------------------------------------------------------------------------


def test_bad_input_is_one_sentence():
    model, rng = MODELS["matrix"](), np.random.default_rng(0)
    good = dict(loss=model.loss, sample=model.sample, statistics=model.statistics, at=np.ones(6) / 3, lr=0.5)
    for change, words in (
        ({"loss": lambda x, Y: Y - jnp.outer(x, x)}, "loss must return one number; got shape"),
        ({"loss": lambda x, Y: (Y @ jnp.ones(5)).sum()}, "loss fails on weights of shape"),
        ({"loss": lambda x, Y: jnp.log(-(x**2).sum())}, "loss must return finite numbers"),
        ({"sample": lambda key, d: jnp.full((d, d), jnp.nan)}, "sample must return finite numbers"),
        ({"sample": lambda key: jnp.ones(2)}, r"sample\(key, d\) fails at d = 6"),
        ({"sample": lambda key, d: rng.normal(size=(d, d))}, "the same numbers for the same key"),
        ({"statistics": lambda x: "m"}, "statistics"),
        ({"statistics": lambda x: x[9]}, "statistics fails on weights of shape"),
        ({"statistics": lambda x: jnp.sqrt(x[0] - 1 / 3)}, "no finite first derivative"),
        ({"at": np.array([1.0, np.nan])}, "at must be finite"),
        ({"at": lambda key, d: jax.random.normal(key, (d,))}, "d= is missing"),
        ({"at": {}}, "at is empty"),
        ({"lr": -1.0}, "lr must be"),
        ({"lr": None}, "loss= needs lr="),
        ({"statistics": None}, "loss= needs statistics="),
    ):
        with pytest.raises(sl.BadInput, match=words):
            sl.effective_dynamics(**good | change)
    with pytest.raises(sl.BadInput, match="problem= and loss= are both given"):
        sl.effective_dynamics(model.problem, **good)
    with pytest.raises(sl.BadInput, match="needs loss="):
        sl.effective_dynamics(model.problem, lr=0.1)
    dynamics = sl.effective_dynamics(**good)
    for wrong, words in (
        (lambda: dynamics.f(np.ones(5)), "weights must have the shapes"),
        (lambda: dynamics.with_d(9), "weights in 6 dimensions, not in 9"),
        (lambda: dynamics.localizability(), "weights in 6 dimensions"),
        (lambda: dynamics.fit(region={"m": (0, 1)}), "region= must be a dictionary with the keys m, r2"),
        (lambda: dynamics.fit(region={"m": (1, 0), "r2": (0, 1)}), "two increasing numbers"),
        (lambda: dynamics.fit(region={"m": 1, "r2": (0, 1)}), r"region\['m'\] must be two increasing numbers"),
        (lambda: dynamics.fit(region={"m": "ab", "r2": (0, 1)}), r"region\['m'\] must be real numbers"),
        (lambda: dynamics.tabulate({"m": "abcd", "r2": (0, 1, 2, 3)}), r"grid\['m'\] must be real numbers"),
        (lambda: dynamics.fit(region={"m": (-1, 1), "r2": (-2, -1)}), "weights were found for only"),
        (lambda: dynamics.tabulate({"m": [0, 1], "r2": [0, 1]}), "at least four increasing numbers"),
        (lambda: dynamics.closure(tolerance=2), "tolerance"),
        (lambda: dynamics.empirical(16).drift(sl.Values([0.1, -0.5])), "have the statistics m = 0.1, r2 = -0.5"),
    ):
        with pytest.raises(sl.BadInput, match=words):
            wrong()
