"""Effective dynamics from a loss alone beside closed forms: standard errors, exponents, and statistics that do not close.

python benchmarks/sampled.py errors       # f, g and Sigma of four models at two dimensions, five random weights each
python benchmarks/sampled.py exponents    # localizability beside the exact laws
python benchmarks/sampled.py closure      # 20 tries each of statistics that close and of others that do not
"""

from __future__ import annotations

import sys

import jax
import jax.numpy as jnp
import numpy as np

import sgdlimits as sl

LR, RIDGE, POINTS, TRIES = 0.7, 0.1, 5, 20
MEANS = {
    "binary_mixture": (np.array([[1.0], [-1.0]]), np.array([1.0, 0.0]), 2),
    "xor_mixture": (np.array([[1.0, 0], [-1, 0], [0, 1], [0, -1]]), np.array([1.0, 1, 0, 0]), 4),
}


class Tensor:
    """A spiked k-tensor with its closed forms at finite d: the noise has d - 1 directions outside v, and is Gaussian."""

    def __init__(self, order: int, snr: float = 1.2) -> None:
        self.order, self.snr, self.problem = order, snr, sl.presets.spiked_tensor(order, snr, lr=LR)

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

    def closed(self, x, d):
        k, stats = self.order, sl.Spike(**self.statistics(x))
        exact, size = sl.effective_dynamics(self.problem), float(stats.squared_norm)
        plain, along = 4 * k * size ** (k - 1), 4 * k * (k - 1) * size ** (k - 2) * float(stats.r2)
        Sigma = np.array(exact.Sigma(stats))
        Sigma[1, 1] += 2 * LR**4 / d**2 * ((d - 1) * plain**2 + 2 * plain * along + along**2)
        share = (d - 1 + (k - 1) * stats.r2 / size) / d
        return self.problem.vector(exact.f(stats)), self.problem.vector(exact.g(stats)) * share, Sigma


class Mixture:
    """A two-layer relu network on Gaussian classes, with the limits of its closed forms."""

    def __init__(self, preset: str, snr: float = 2.0) -> None:
        (self.means, self.labels, self.p), self.snr = MEANS[preset], snr
        self.k, self.problem = self.means.shape[1], getattr(sl.presets, preset)(snr=snr, ridge=RIDGE, lr=LR)

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
        products = (w["W"] @ w["W"].T)[np.triu_indices(self.p)]
        return jnp.concatenate([w["W"][:, : self.k].ravel(), products, w["a"]])

    def without_products(self, w):
        return {"M": w["W"][:, : self.k], "a": w["a"]}

    def at(self, key, d):
        one, two, three = jax.random.split(key, 3)
        W = jax.random.normal(one, (self.p, d)) / np.sqrt(d)
        W = W.at[:, : self.k].add(0.7 * jax.random.normal(two, (self.p, self.k)))
        return {"W": W, "a": jax.random.normal(three, (self.p,))}

    def closed(self, w, d):
        stats, exact = sl.Overlaps(w["a"], w["W"][:, : self.k], w["W"] @ w["W"].T), sl.effective_dynamics(self.problem)
        return self.problem.vector(exact.f(stats)), self.problem.vector(exact.g(stats)), exact.Sigma(stats)


class Regression:
    """Least squares on inputs whose variances are unequal by `spread`; the statistic is the squared distance to the target."""

    def __init__(self, spread: float) -> None:
        self.spread = spread

    def loss(self, w, x):
        return (x["x"] @ w - x["y"]) ** 2 / 2

    def sample(self, key, d):
        x = jax.random.normal(key, (d,)) / jnp.sqrt(1 + self.spread * jnp.arange(d) / d)
        return {"x": x, "y": x.sum() / jnp.sqrt(d)}

    def statistics(self, w):
        return {"distance": ((w - 1 / jnp.sqrt(w.size)) ** 2).sum()}

    def at(self, key, d):
        return 2 * jax.random.normal(key, (d,)) / jnp.sqrt(d)


class HeavyTails:
    """Logistic regression on two classes with the tails of Student's t of 5 degrees of freedom."""

    def loss(self, w, x):
        field = w @ x["x"]
        return jnp.logaddexp(0.0, field) - x["y"] * field

    def sample(self, key, d):
        label, normal, length = jax.random.split(key, 3)
        y = jax.random.bernoulli(label).astype(float)
        x = jax.random.normal(normal, (d,)) * jnp.sqrt(5 / jax.random.chisquare(length, 5.0))
        return {"x": x.at[0].add(2 * y - 1), "y": y}

    def statistics(self, w):
        return {"m": w[0], "r2": (w[1:] ** 2).sum()}

    def at(self, key, d):
        return jax.random.normal(key, (d,)) / jnp.sqrt(d) + 0.5 * jnp.eye(d)[0]


MODELS = {
    "matrix": Tensor(2),
    "tensor": Tensor(3),
    "binary_mixture": Mixture("binary_mixture"),
    "xor_mixture": Mixture("xor_mixture"),
}
SIZES = {"matrix": (40, 200), "tensor": (30, 45), "binary_mixture": (200, 800), "xor_mixture": (200, 800)}
FAMILIES = {
    "matrix": ((16, 32, 64, 128), 8192),
    "tensor": ((12, 20, 32, 48), 8192),
    "binary_mixture": ((50, 150, 450, 1350), 16_384),
    "xor_mixture": ((50, 150, 450, 1350), 8192),
}
PLANE = HeavyTails()
FAMILY_OF = {
    "matrix PCA, m alone": (MODELS["matrix"], lambda x: {"m": x[0]}, 20, False),
    "matrix PCA, squared norm alone": (MODELS["matrix"], lambda x: {"norm2": (x**2).sum()}, 20, False),
    "tensor PCA, m alone": (MODELS["tensor"], lambda x: {"m": x[0]}, 12, False),
    "two classes, without products": (MODELS["binary_mixture"], MODELS["binary_mixture"].without_products, 40, False),
    "XOR, without products": (MODELS["xor_mixture"], MODELS["xor_mixture"].without_products, 40, False),
    "least squares, unequal variances": (Regression(4.0), Regression(4.0).statistics, 50, False),
    "heavy tails, m alone": (PLANE, lambda w: {"m": w[0]}, 50, False),
    "matrix PCA": (MODELS["matrix"], MODELS["matrix"].statistics, 20, True),
    "two classes": (MODELS["binary_mixture"], MODELS["binary_mixture"].statistics, 40, True),
    "least squares, equal variances": (Regression(0.0), Regression(0.0).statistics, 50, True),
    "heavy tails": (PLANE, PLANE.statistics, 50, True),
}


def dynamics(model, statistics=None, **more):
    statistics = statistics or model.statistics
    return sl.effective_dynamics(loss=model.loss, sample=model.sample, statistics=statistics, at=model.at, lr=LR, **more)


def deviations(ours, exact) -> np.ndarray:
    """How many standard errors each number is away from its closed form, where there is an error."""
    value, error = (np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(part)]) for part in (ours.value, ours.error))
    known = error > 1e-12
    return (value - np.ravel(exact))[known] / error[known]


def errors(samples: int = 4096, seeds: int = 4) -> None:
    print("| model | d | part | numbers | largest at seed 0 | mean | standard deviation |\n|---|---|---|---|---|---|---|")
    for name, model in MODELS.items():
        for d in SIZES[name]:
            away: dict[str, list[np.ndarray]] = {"f": [], "g": [], "Sigma": []}
            for seed in range(seeds):
                found = dynamics(model, d=d, samples=samples if name != "tensor" else samples // 4, seed=seed)
                weights = [found.draw_weights(i) for i in range(POINTS)]
                for w, each in zip(weights, found.estimates_of(weights), strict=True):
                    for part, exact in zip(away, model.closed(w, d), strict=True):
                        away[part].append(deviations(getattr(each, part), exact))
            for part, rows in away.items():
                every, first = np.concatenate(rows), np.abs(np.concatenate(rows[:POINTS])).max()
                numbers = f"{first:.2f} | {every.mean():+.2f} | {every.std():.2f}"
                print(f"| {name} | {d} | {part} | {every.size} | {numbers} |", flush=True)


def exponents() -> None:
    print("| model | condition | measured | exact laws |\n|---|---|---|---|")
    for name, (dimensions, samples) in FAMILIES.items():
        found = dynamics(MODELS[name], d=dimensions[0], samples=samples).localizability(dimensions)
        exact = sl.effective_dynamics(MODELS[name].problem).localizability()
        for ours, theirs in zip(found.conditions, exact.conditions, strict=True):
            print(f"| {name} | {ours.name} | {ours.measured:.3f} ± {ours.error:.3f} | {theirs.measured:.3f} |", flush=True)
        print(f"| {name} | critical exponent | {found.critical_exponent:.3f} | {exact.critical_exponent:.3f} |", flush=True)


def closure(samples: int = 2048) -> None:
    print("| statistics | close | judged so | differences |\n|---|---|---|---|")
    for name, (model, statistics, d, closes) in FAMILY_OF.items():
        tries = [dynamics(model, statistics, d=d, samples=samples, seed=seed).closure() for seed in range(TRIES)]
        right, shares = sum(each.closed == closes for each in tries), [each.share.max() for each in tries]
        row = (name, "yes" if closes else "no", f"{right} of {TRIES}", f"{min(shares):.3f} to {max(shares):.3f}")
        print("| " + " | ".join(row) + " |", flush=True)


if __name__ == "__main__":
    for part in sys.argv[1:] or ["errors", "exponents", "closure"]:
        {"errors": errors, "exponents": exponents, "closure": closure}[part]()
