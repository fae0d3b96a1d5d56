"""Shared by all tests: problems, random states, and a two-sample test with a stated false-alarm rate."""

from __future__ import annotations

import numpy as np
import pytest

FALSE_ALARM = 1e-4
"""Each statistical comparison fails by chance with this probability; seeds are fixed, so a pass stays a pass."""


@pytest.fixture(scope="module", autouse=True)
def forget_compiled():
    """Drop what a module's tests compiled, which is gigabytes by the end otherwise."""
    yield
    import jax

    jax.clear_caches()


@pytest.fixture
def random_overlaps():
    """A function that draws statistics of real vectors: `random_overlaps(problem, seed)`."""
    import sgdlimits as sl

    def draw(problem, seed=0, dimension=12):
        rng = np.random.default_rng(seed)
        p, B = problem.network.width, np.asarray(problem.frame)
        W = rng.normal(size=(p, dimension)) / np.sqrt(dimension) * 1.2
        if problem.algorithm.sphere:
            W /= np.linalg.norm(W, axis=1, keepdims=True)
        a = 1 + 0.5 * rng.normal(size=p)
        return sl.Overlaps(a, W[:, : B.shape[0]] @ B.T, W @ W.T)

    return draw


@pytest.fixture
def same_law():
    """A function that fails unless two samples of each statistic may have the same law (Kolmogorov-Smirnov, all together)."""
    from scipy.stats import ks_2samp

    def compare(left: dict[str, np.ndarray], right: dict[str, np.ndarray], false_alarm: float = FALSE_ALARM) -> None:
        worst = {}
        for name in left:
            a, b = np.asarray(left[name]), np.asarray(right[name])
            for index in np.ndindex(a.shape[1:]):
                x, y = a[(slice(None), *index)], b[(slice(None), *index)]
                if max(np.ptp(x), np.ptp(y)) < 1e-9 * max(1.0, np.abs(x).max()):
                    assert np.allclose(x, y, atol=1e-9)
                    continue
                worst[name, index] = ks_2samp(x, y).pvalue
        bound = false_alarm / max(1, len(worst))
        bad = {key: p for key, p in worst.items() if p < bound}
        assert not bad, f"p-values below {bound:.1e} (Bonferroni over {len(worst)}): {bad}"

    return compare
