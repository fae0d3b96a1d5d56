"""Shared by all tests: problems, random states, and a two-sample test with a stated false-alarm rate."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import numpy as np
import pytest
from xdist.scheduler import LoadScopeScheduling

FALSE_ALARM = 1e-4
"""Each statistical comparison fails by chance with this probability; seeds are fixed, so a pass stays a pass."""


def pytest_configure(config):
    """Let all processes share what they compile, in a folder that lasts as long as the tests or is the user's own."""
    import jax

    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        folder = tempfile.TemporaryDirectory(prefix="sgdlimits-compiled-")
        config.add_cleanup(folder.cleanup)
        os.environ["JAX_COMPILATION_CACHE_DIR"] = folder.name
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"  # for the processes that tests start
    jax.config.update("jax_compilation_cache_dir", os.environ["JAX_COMPILATION_CACHE_DIR"])
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    # An entry that is read while another process writes it is compiled again.
    config.addinivalue_line("filterwarnings", "ignore:Error reading persistent compilation cache entry")


class Groups(LoadScopeScheduling):
    """Tests that compile the same run in one process: those of a module, and in contracts those of one problem at one level.

    Figures, pages and doctests differ from one another and go wherever a process is free.
    """

    def _split_scope(self, nodeid: str) -> str:
        module, _, test = str(nodeid).partition("::")
        folder = Path(module).parent.name
        if folder == "contracts" and test.endswith("]"):
            return f"{module}[{test[:-1].rpartition('[')[2]}]"
        return module if folder in {"cli", "laws", "plot", "unit"} else str(nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Not `--dist loadgroup`: pytest-xdist 3.8 reads no groups with pytest 9.2."""
    return Groups(config, log)


MOST_MEMORY = 3 * 2**20
"""Kilobytes from which on a process drops what it has compiled."""


@pytest.fixture(scope="module", autouse=True)
def forget_compiled():
    """Drop what was compiled once a process has grown large: it would be gigabytes by the end otherwise."""
    yield
    import resource

    import jax

    if resource.getrusage(resource.RUSAGE_SELF).ru_maxrss > MOST_MEMORY:
        jax.clear_caches()


@pytest.fixture
def random_overlaps():
    """A function that draws overlaps of real vectors: `random_overlaps(problem, seed)`."""
    import sgdlimits as sl

    def draw(problem, seed=0, dimension=12):
        rng = np.random.default_rng(seed)
        p, B = problem.directions.width, np.linalg.cholesky(problem.directions.gram)
        W = rng.normal(size=(p, dimension)) / np.sqrt(dimension) * 1.2
        if hasattr(problem, "algorithm") and problem.algorithm.sphere:
            W /= np.linalg.norm(W, axis=1, keepdims=True)
        a = 1 + 0.5 * rng.normal(size=p)
        return sl.Overlaps(a, W[:, : B.shape[0]] @ B.T, W @ W.T)

    return draw


@pytest.fixture
def random_statistics(random_overlaps):
    """A function that draws the statistics of any problem for real vectors: `random_statistics(problem, seed)`."""
    import jax

    def draw(problem, seed=0):
        one = jax.tree.map(lambda leaf: leaf[None], random_overlaps(problem, seed))
        return jax.tree.map(lambda leaf: leaf[0], problem.from_overlaps(one))

    return draw


@pytest.fixture
def say(capsys):
    """Print beside the test's name, also where it passes."""

    def echo(text):
        with capsys.disabled():
            print(f"\n  {text}")

    return echo


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
