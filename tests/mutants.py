"""Small faults, put into a copy of the code one at a time, and the tests that see them: `make mutants`.

`make mutants ARGS="clip chain"` tries those whose file has one of these words. What is printed is written to `mutants.md` too.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
COPIED = ("src", "tests", "requirements", "pyproject.toml")
LIMIT = 600
"""Seconds for the tests of one fault; a fault that makes them last longer counts as not seen."""


class Mutant(NamedTuple):
    """A fault: the file under `src/sgdlimits`, the text that occurs once in it, what stands there instead, and tests to run."""

    file: str
    old: str
    new: str
    tests: str


OPTAX = "tests/unit/algorithm/test_optax.py -k "
MIXTURE = "tests/laws/test_algorithms_on_mixtures.py -k "
SPACE = "tests/laws/test_algorithms.py -k "
PLATEAU = "tests/unit/papers/test_mediocrity.py"
SPIKED = "tests/laws/test_spiked_tensor.py"

MUTANTS = (
    # algorithm/
    Mutant(
        "algorithm/limit.py",
        "jnp.prod(jnp.stack([inputs.class_probabilities[i] for i in c]))",
        "jnp.asarray(0.5**b)",
        MIXTURE + "normalised",
    ),
    Mutant("algorithm/limit.py", "jnp.full(b, model.data.squared_length)", "jnp.ones(b)", MIXTURE + "normalised"),
    Mutant("algorithm/limit.py", "(C * variances) @ C.T", "C @ C.T", MIXTURE + "normalised"),
    Mutant("algorithm/limit.py", "spread = length * pushed", "spread = jnp.sqrt(length) * pushed", MIXTURE + "SGD"),
    Mutant("algorithm/limit.py", "return b * (square", "return (square", MIXTURE + "each"),
    Mutant("algorithm/momentum.py", "(keep * now.inv_d) * now", "(2 * keep * now.inv_d) * now", OPTAX + "Nesterov"),
    Mutant("algorithm/clip.py", "(self.noise * self.norm / self.batch)", "(self.noise * self.norm)", OPTAX + "private"),
    Mutant("algorithm/clip.py", "jnp.minimum(1.0, self.norm", "jnp.minimum(1.0, 2 * self.norm", OPTAX + "clipped"),
    Mutant("algorithm/clip.py", "* lengths + now.inv_d * scalars", "* lengths", OPTAX + "each"),
    Mutant("algorithm/weights.py", "return sum((product(one, other)", "return 2 * sum((product(one, other)", OPTAX + "Muon"),
    Mutant("algorithm/coordinates.py", "self.batch * inv_d * (slope**2", "inv_d * (slope**2", OPTAX + "Adam"),
    Mutant(
        "algorithm/coordinates.py", "-self.lr * inv_d * jnp.sign(slope)", "-self.lr * inv_d * jnp.tanh(slope)", OPTAX + "sign"
    ),
    Mutant("algorithm/muon.py", "(self.ridge * now.inv_d) *", "(2 * self.ridge * now.inv_d) *", OPTAX + "Muon"),
    Mutant("algorithm/sharpness.py", "0, self.radius /", "0, 2 * self.radius /", OPTAX + "SAM"),
    Mutant("algorithm/normalised.py", "0, 1 / jnp.where(size", "0, 2 / jnp.where(size", OPTAX + "normalised"),
    Mutant("algorithm/normalised.py", "self.offset + total", 'self.offset + now["sum"]', SPACE + "AdaGrad"),
    Mutant(
        "algorithm/decay.py",
        "(self.decay * now.inv_d) * now.student",
        '(self.decay * now.inv_d) * step["student"]',
        OPTAX + "decayed",
    ),
    Mutant(
        "algorithm/average.py",
        "now.t) + 2 * one + MIN_ELAPSED_TIME",
        "now.t) + one + MIN_ELAPSED_TIME",
        SPACE + "chain_has_the_law",
    ),
    Mutant("algorithm/schedule.py", "rising * jnp.exp", "jnp.exp", OPTAX + "scheduled"),
    Mutant("algorithm/repeated.py", "range(self.times)", "range(self.times - 1)", OPTAX + "repeated"),
    Mutant(
        "algorithm/base.py",
        "(self.ridge * now.inv_d) * (now.student",
        "(2 * self.ridge * now.inv_d) * (now.student",
        OPTAX + "SGD",
    ),
    # level/
    Mutant("inputs/mixture.py", "scale[row][:, None] * below", "0.9 * scale[row][:, None] * below", SPACE + "private"),
    Mutant("inputs/mixture.py", "d - k - n - np.arange(r)", "d - k - np.arange(r)", SPACE + "chain_has_the_law"),
    Mutant("statistics/triangular.py", "cosine * v - sine", "cosine * v + sine", "tests/laws/test_batches.py -k triangular"),
    Mutant("level/sgd.py", "/ algorithm.batch, inv_d)", ", inv_d)", OPTAX + "Adam"),
    Mutant("level/sde.py", "jnp.sqrt(size / self.d) / 2, t)", "jnp.sqrt(size / self.d), t)", SPIKED),
    # statistics/, random/, gaussian/, expectation/, model/
    Mutant(
        "statistics/frame.py",
        "(frame.m[:, None] * frame.m[None]).sum(2)",
        "(frame.m[:, None] * frame.m[None]).mean(2)",
        "tests/unit/statistics",
    ),
    Mutant(
        "kernel/random/transform.py",
        "radius = root(-2 * (exponent",
        "radius = root(-1.9 * (exponent",
        "tests/unit/kernel/random",
    ),
    Mutant(
        "expectation/gaussian/erf.py",
        "value = jnp.arcsin(overlap",
        "value = 1.01 * jnp.arcsin(overlap",
        "tests/unit/expectation/test_units.py",
    ),
    Mutant(
        "expectation/gaussian/erf.py",
        "4 / np.pi**2 * map_pairs",
        "3.9 / np.pi**2 * map_pairs",
        "tests/unit/expectation/test_units.py",
    ),
    Mutant(
        "expectation/squares.py",
        "slope[:, None] * slope * L.gradient",
        "slope[:, None] * L.gradient",
        "tests/unit/problem/test_drift.py",
    ),
    Mutant("inputs/base.py", "jnp.cumsum(weights)[:-1]", "jnp.cumsum(weights[::-1])[:-1]", MIXTURE + "SGD"),
    # problem/
    Mutant("problem/spiked.py", "corrector = 4 * self.order", "corrector = 2 * self.order", SPIKED),
    Mutant("problem/spiked.py", "mixed = 2 * more * m * r2", "mixed = more * m * r2", SPIKED),
    Mutant("analysis/equations/of_problem.py", '(r" - \\alpha m"', '(r" + \\alpha m"', "tests/unit/problem/test_latex.py"),
    # papers/
    Mutant("papers/mediocrity/theory/times.py", "np.log(way + 2 * d * m**2 * (1 - T))", "np.log(way + 2 * d * m**2)", PLATEAU),
    Mutant(
        "papers/mediocrity/theory/times.py",
        "(at.T * at.d + 1 - at.T) / (2 * at.p)))",
        "(at.T * at.d + 1) / (2 * at.p)))",
        PLATEAU,
    ),
    Mutant("papers/mediocrity/theory/times.py", "random.mean[1]) * (1 - T)", "random.mean[1])", PLATEAU),
    Mutant("papers/mediocrity/theory/rates.py", "return 4 * (10 - 6 / p", "return 4 * (10 - 5 / p", PLATEAU),
    Mutant("papers/mediocrity/theory/rates.py", "8 / p * (1 - 8 * lr / p**2)", "8 / p * (1 - 4 * lr / p**2)", PLATEAU),
    Mutant(
        "papers/effective/theory.py",
        "(weight - ridge) / ridge",
        "weight / ridge",
        "tests/laws/test_effective.py tests/unit/papers",
    ),
    # analysis/, sweeps/
    Mutant("analysis/exit_times.py", "np.ceil(share", "np.floor(share", "tests/unit/analysis/test_exit_times.py"),
    Mutant(
        "analysis/exit_times.py",
        "share = margins[run, before] /",
        "share = margins[run, first] /",
        "tests/unit/analysis/test_exit_times.py",
    ),
    Mutant(
        "run/sweeps/unit.py",
        "hash_json([recipe.seed, model])",
        "hash_json([recipe.seed])",
        "tests/unit/run/sweeps/test_sweep.py",
    ),
)


def copied(folder: Path) -> None:
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, folder / name)


def fails(folder: Path, tests: str, *more: str) -> bool:
    """Whether the tests fail in a copy; what they compile stays with the real tree."""
    words, _, chosen = tests.partition(" -k ")
    command = [sys.executable, "-m", "pytest", "-n", "0", "-x", "-p", "no:cacheprovider", *words.split(), *more]
    command += ["-k", chosen] if chosen else []
    kept = os.environ.get("JAX_COMPILATION_CACHE_DIR", str(ROOT / ".pytest_cache" / "mutants"))
    where = {"PYTHONPATH": str(folder / "src"), "JAX_COMPILATION_CACHE_DIR": kept, "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(command, cwd=folder, env={**os.environ, **where}, capture_output=True, text=True, timeout=LIMIT)
    except subprocess.TimeoutExpired:
        return False
    if done.returncode not in (0, 1, 5):  # 5: the tests chosen all wait for --all
        raise SystemExit(f"{' '.join(command)} did not run:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.returncode == 1


def main(words: list[str]) -> None:
    chosen = [one for one in MUTANTS if not words or any(word in one.file for word in words)]
    rows, fast, full = [], 0, 0
    head = ["| file | text | fault | tests | seen by |", "|---|---|---|---|---|"]
    for one in chosen:
        begun = time.perf_counter()
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            copied(folder)
            file = folder / "src" / "sgdlimits" / one.file
            file.write_text(file.read_text().replace(one.old, one.new))
            seen = "`make test`" if fails(folder, one.tests) else "`--all`" if fails(folder, one.tests, "--all") else "nothing"
        fast, full = fast + (seen == "`make test`"), full + (seen != "nothing")
        rows.append(f"| {one.file} | `{one.old}` | `{one.new}` | `{one.tests}` | {seen} |")
        print(f"{rows[-1]} {time.perf_counter() - begun:.0f} s", flush=True)
        total = f"{len(rows)} faults: {fast} are seen by `make test`, {full} by `--all`."
        (ROOT / "mutants.md").write_text("\n".join([total, "", *head, *rows, ""]))
    print(total)


if __name__ == "__main__":
    main(sys.argv[1:])
