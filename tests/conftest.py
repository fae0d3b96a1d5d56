"""How the tests are run: the tier, what is compiled, the processes. Then what they share: states, and a two-sample test."""

from __future__ import annotations

import gc
import hashlib
import os
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from xdist.scheduler import LoadScopeScheduling

FALSE_ALARM = 1e-4
"""Each statistical comparison fails by chance with this probability; seeds are fixed, so a pass stays a pass."""


# --- the tier ----------------------------------------------------------------------------------------------------------------


def pytest_addoption(parser):
    parser.addoption("--all", action="store_true", dest="all_cases", help="every case: all laws, contracts, figures, gallery")


def pytest_collection_modifyitems(config, items):
    """Without `--all`, leave out what is marked `full` and all but the first case of each law. What is named by :: runs."""
    sizes = Counter(group(item.nodeid) for item in items)
    items.sort(key=lambda item: (not is_compiled_as_it_comes(item.path), -sizes[group(item.nodeid)]))
    if config.option.all_cases or any("::" in str(word) for word in config.args):
        return
    kept, left, laws = [], [], set()
    for item in items:
        law = (item.path, getattr(item, "originalname", item.name)) if item.path.parent.name == "laws" else None
        out = item.get_closest_marker("full") or law in laws
        (left if out else kept).append(item)
        if law is not None and not out:
            laws.add(law)
    if left:
        items[:] = kept
        config.hook.pytest_deselected(items=left)


# --- what is compiled --------------------------------------------------------------------------------------------------------

MOST_KEPT = 2**30
"""Bytes of compiled code that stay from one run of the tests to the next."""


def pytest_configure(config):
    """Let all processes share what they compile, in a folder that stays for the next run or is the user's own."""
    import jax

    config.addinivalue_line("markers", "full: only with --all")
    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:  # the first process sets it for all others
        os.environ["JAX_COMPILATION_CACHE_DIR"] = str(kept_folder(config.rootpath))
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"  # for the processes that tests start
    jax.config.update("jax_compilation_cache_dir", os.environ["JAX_COMPILATION_CACHE_DIR"])
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    # A call of jaxlib 0.10.1 once waited for ever for its own threads, in a process of tests whose calls were asynchronous.
    jax.config.update("jax_cpu_enable_async_dispatch", False)
    from sgdlimits.settings import setup_jax

    setup_jax()  # processes that write the same entries at once


def kept_folder(root: Path) -> Path:
    """The folder of these pins, with those of other pins removed and the entries that were read longest ago beyond its size.

    JAX's own bound on the size needs a package of locks, and asks the disk at every entry.
    """
    pins = hashlib.sha256((root / "requirements" / "test.txt").read_bytes()).hexdigest()[:12]
    folder = root / ".pytest_cache" / "jax" / pins
    folder.mkdir(parents=True, exist_ok=True)
    for other in folder.parent.iterdir():
        if other != folder:
            shutil.rmtree(other, ignore_errors=True)
    left = MOST_KEPT
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.stat().st_atime, reverse=True):
        left -= entry.stat().st_size
        if left < 0:
            entry.unlink(missing_ok=True)
    return folder


COMPILED_AS_IT_COMES = {
    "algorithm_limits", "algorithms", "algorithms_on_mixtures", "batches", "benchmarks", "committee", "cone", "effective",
    "expansion", "kernels", "limits", "local_limit", "mean_field", "multiclass",
}  # fmt: skip
"""Laws that compile more than they compute."""


def is_compiled_as_it_comes(path: Path) -> bool:
    """Whether optimising what a module of tests compiles takes longer than it saves: much, computed a few times."""
    folders = {"analysis", "contracts", "expectation", "figures", "papers", "problem"}
    name = path.stem.removeprefix("test_")
    return name != path.stem and (path.parent.name in folders or name in COMPILED_AS_IT_COMES)


@pytest.fixture(scope="module", autouse=True)
def optimise(request):
    """Optimise what is compiled, but where it is taken as it comes. Such modules are first, and what they compiled is dropped:
    its last bits are others than those of processes that tests start."""
    import jax

    if jax.config.values["jax_disable_most_optimizations"] != (few := is_compiled_as_it_comes(request.path)):
        jax.config.update("jax_disable_most_optimizations", few)
        jax.clear_caches()


# --- the processes -----------------------------------------------------------------------------------------------------------

MOST_WORKERS = 4
"""Processes at once, each of a few gigabytes, unless PYTEST_XDIST_AUTO_NUM_WORKERS says otherwise."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config):
    return int(os.environ.get("PYTEST_XDIST_AUTO_NUM_WORKERS") or min(MOST_WORKERS, max(2, os.cpu_count() or 1)))


def group(nodeid: str) -> str:
    """Tests that compile the same run in one process: those of a module, and in contracts those of one problem at one level.

    Figures, pages and doctests differ from one another and go wherever a process is free.
    """
    module, _, test = str(nodeid).partition("::")
    folder = Path(module).parts[1]
    if folder == "contracts" and test.endswith("]"):
        return f"{module}[{test[:-1].rpartition('[')[2]}]"
    return module if folder in {"cli", "explorer", "laws", "plot", "unit"} else str(nodeid)


class Groups(LoadScopeScheduling):
    """Groups, in the order of collection."""

    def _split_scope(self, nodeid: str) -> str:
        return group(nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Not `--dist loadgroup`: pytest-xdist 3.8 reads no groups with pytest 9.2."""
    return Groups(config, log)


@pytest.fixture(scope="module", autouse=True)
def forget_compiled():
    """Drop what was compiled when a process has its share of half of the memory: it would be gigabytes by the end otherwise."""
    yield
    import jax

    if memory_held() > os.sysconf("SC_PHYS_PAGES") / (2 * int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))):
        jax.clear_caches()


def memory_held() -> float:
    """The pages of memory that this process has, or where nobody says, more than any machine."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return float("inf")


def pytest_collection_finish(session):
    """Look for garbage less often, and never among the modules: tracing makes many objects and few cycles."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


# --- what tests share --------------------------------------------------------------------------------------------------------


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
        values = problem.directions.scalars
        draw = lambda value: value + 0.5 * rng.normal(size=np.shape(value))
        a = draw(np.ones(p)) if values is None else {name: draw(value) for name, value in values.items()}
        return sl.Overlaps(a, W[:, : B.shape[0]] @ B.T, W @ W.T)

    return draw


@pytest.fixture
def random_statistics(random_overlaps):
    """A function that draws the statistics of any problem for real vectors: `random_statistics(problem, seed)`."""
    import jax

    def draw(problem, seed=0):
        one = jax.tree.map(lambda leaf: leaf[None], random_overlaps(problem, seed))
        return jax.tree.map(lambda leaf: leaf[0], problem.coordinates.from_overlaps(one))

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
