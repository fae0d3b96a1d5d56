"""Whether two versions of the code give the same numbers: paths of every problem at every level, from fixed seeds.

    python benchmarks/same_paths.py record FILE.npz
    python benchmarks/same_paths.py compare OLD.npz NEW.npz

`record` simulates the presets, problems of a user's own and every algorithm, and keeps the variables of each dataset under a
key such as "committee batch/chain lanes/M". A combination that is refused is kept as the first sentence of its error. `compare`
prints the differences by level and exits with 1 where one of them is more than rounding. Only the public API is used, so that
modules can be moved between the two recordings.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import sgdlimits as sl

T_MAX, SAVE, RUNS, SEED = 2.0, 4, 4, 20
D, SPACE = 300, 40
"""Dimension of the chain and the SDE, and of SGD with weights in R^d."""
FEW = sl.Sobol(6, 4)
"""Sobol points for expectations without a closed form: few, since only equality of two versions matters."""


class Level(NamedTuple):
    """A level of description, the dimension of random starts, the number of runs and the kernel."""

    level: Any
    d: int = D
    runs: int = RUNS
    kernel: str | None = None


LEVELS = {
    "sgd": Level(sl.SGD(SPACE), SPACE),
    "chain xla": Level(sl.Chain(D), kernel="xla"),
    "chain lanes": Level(sl.Chain(D), kernel="lanes"),
    "sde": Level(sl.SDE(D), kernel="xla"),
    "ode": Level(sl.ODE(), runs=2),
    "mean field": Level(sl.MeanField(), runs=2),
}
TOLERANCES = {"ode": 1e-6, "mean field": 1e-6, "analysis": 1e-6}
"""Differences that count as rounding, relative to the largest entry: solvers and searches amplify them."""
TOLERANCE = 1e-9
"""The same for all other levels."""
SMALLEST = 1e-6
"""Scale of arrays whose entries are all smaller: a sum that cancels has no relative accuracy."""


# --- presets -----------------------------------------------------------------------------------------------------------------

PRESETS: dict[str, dict[str, dict[str, Any]]] = {
    "phase_retrieval": {
        "": {},
        "wide": dict(width=3, lr=0.1, noise=0.2, train_second=True, rho=1.5),
        "free": dict(width=2, lr=0.1, noise=0.1, sphere=False),
    },
    "single_index": {
        "": dict(noise=0.1),
        "relu": dict(
            activation="relu", target="he2", width=2, lr=0.3, sphere=False, train_second=0.5, batch=2, expectation=FEW
        ),
    },
    "committee": {
        "": dict(noise=0.05),
        "batch": dict(width=3, teachers=2, lr=0.5, noise=0.1, sphere=True, train_second=True, batch=3),
        "relu": dict(activation="relu", width=2, teachers=1, lr=0.5, noise=0.1),
    },
    "quadratic_network": {"": {}, "wide": dict(width=3, teachers=2, lr=0.15, noise=0.1)},
    "binary_mixture": {"": dict(snr=10.0), "wide": dict(snr=float("inf"), ridge=0.05, width=3, lr=0.5)},
    "xor_mixture": {"": dict(snr=10.0, width=2), "on means": dict(snr=float("inf"), lr=0.5)},
    "gaussian_mixture": {
        "": dict(means=[[-1.0], [0.0], [1.0]], labels=[0, 1, 0], weights=[0.3, 0.4, 0.3], snr=5.0, ridge=0.1, expectation=FEW),
        "erf": dict(means=[[1.0], [-1.0]], labels=[1, 0.2], snr=4.0, activation="erf", batch=2, expectation=FEW),
    },
    "spiked_tensor": {
        "": {},
        "order three": dict(order=3, snr=3.0, lr=0.1, ridge=0.01),
        "direct": dict(order=2, snr=2.0, lr=0.2, direct=True),
    },
}
"""Arguments of each preset, by the name of a setting."""


# --- problems of a user's own ------------------------------------------------------------------------------------------------


def softsign(x):
    return x / (1 + jnp.abs(x))


def log_cosh(prediction, label):
    error = prediction - label
    return jnp.logaddexp(error, -error) - jnp.log(2.0)


def huber(prediction, label):
    error = jnp.abs(prediction - label)
    return jnp.where(error < 1, error**2 / 2, error - 0.5)


def product(fixed):
    return fixed[0] * fixed[1]


def gated(fields, scalars):
    value, gate = fields
    return scalars["scale"] * value * jax.nn.sigmoid(gate - scalars["threshold"])


class Langevin(sl.Algorithm):
    """SGD with noise of its own."""

    lr: float
    temperature: float = 0.0
    batch: int = 1
    sphere = trains_second = False
    uses_noise = uses_gram = True

    def step(self, now):
        return {"student": now.student - self.lr * now.gradient() + (2 * self.lr * self.temperature) ** 0.5 * now.noise()}


class Falling(sl.Algorithm):
    """SGD at a learning rate that falls as 1/t."""

    lr: float
    half: float
    batch: int = 1
    sphere = trains_second = False

    def step(self, now):
        return {"student": now.student - self.lr / (1 + now.t / self.half) * now.gradient()}


OBLIQUE = [[1.0, 0.3], [0.3, 0.7]]


def learn(readout, teachers=1, network=None, loss=None, algorithm=None, noise=0.1, gram=None, **more) -> sl.ProjectionProblem:
    """A problem from its parts: two tanh units with the squared loss unless given."""
    return sl.ProjectionProblem(
        target=sl.Target(readout, teachers, noise=noise, gram=gram),
        network=sl.TwoLayer(2, "tanh") if network is None else network,
        loss=sl.SquaredLoss() if loss is None else loss,
        algorithm=sl.OnePassSGD(0.5) if algorithm is None else algorithm,
        **more,
    )


def classify(means, labels, weights, network, algorithm, variance=0.3, loss=None, **more) -> sl.ProjectionProblem:
    """A network that learns the labels of Gaussian classes, from a random second layer."""
    return learn(
        sl.ClassLabels(labels),
        np.shape(means)[1],
        network,
        sl.CrossEntropy() if loss is None else loss,
        algorithm,
        noise=0.0,
        data=sl.mixture(means, weights, variance=variance),
        initial=sl.InitialWeights(second=0.0, second_spread=1.0),
        **more,
    )


def three_classes() -> sl.ProjectionProblem:
    """Softmax over three classes around a circle, with a bias for each output."""
    angle = 2 * np.pi * np.arange(3) / 3
    return classify(
        np.stack([np.cos(angle), np.sin(angle)], axis=1),
        range(3),
        [0.5, 0.3, 0.2],
        sl.TwoLayer(2, "tanh", mean=False, outputs=3, bias=True),
        sl.OnePassSGD(1.0, lr_second={"a": 0.5, "bias": 0.2}, ridge=0.05),
        loss=sl.SoftmaxCrossEntropy(),
        expectation=FEW,
    )


def two_classes(activation: str, variance: float = 0.3, batch: int = 1) -> sl.ProjectionProblem:
    """Two classes of unequal weights around means that are not opposite."""
    return classify(
        [[1.0, 0.0], [-0.5, 0.8]],
        [1.0, 0.0],
        [0.7, 0.3],
        sl.TwoLayer(2, activation, mean=False),
        sl.OnePassSGD(1.0, lr_second=0.5, ridge=0.05, batch=batch),
        variance=variance,
    )


def unequal_teachers() -> sl.ProjectionProblem:
    """A quadratic readout of directions that are not orthonormal, on the sphere, in batches."""
    readout, algorithm = sl.QuadraticReadout([[1.0, 0.2], [0.2, -0.5]]), sl.OnePassSGD(0.3, 0.1, sphere=True, batch=3)
    return learn(readout, 2, sl.TwoLayer(3, "square"), algorithm=algorithm, gram=OBLIQUE)


def gates() -> sl.ProjectionProblem:
    """A network that is no sum of units, with two scalars of its own."""
    network = sl.Network(gated, width=2, scalars={"scale": 1.0, "threshold": 0.2})
    algorithm = sl.OnePassSGD(0.5, lr_second={"scale": 0.2, "threshold": 0.1})
    return learn(lambda fixed: jnp.tanh(fixed).sum(), network=network, algorithm=algorithm, expectation=FEW)


OWN: dict[str, Callable[[], Any]] = {
    "softsign": lambda: learn(sl.CommitteeReadout("erf"), 2, sl.TwoLayer(2, softsign), expectation=FEW),
    "log_cosh": lambda: learn(
        lambda fixed: jnp.tanh(fixed).sum(), loss=log_cosh, algorithm=sl.OnePassSGD(0.5, ridge=0.1, batch=2), expectation=FEW
    ),
    "huber product": lambda: learn(
        product, 2, sl.TwoLayer(2, jnp.abs), huber, sl.Clipped(sl.OnePassSGD(0.3, 0.2, ridge=0.05), norm=0.5), expectation=FEW
    ),
    "oblique product": lambda: learn(
        product, 2, sl.TwoLayer(2, "square"), algorithm=sl.OnePassSGD(0.1, 0.1), gram=OBLIQUE, expectation=sl.GaussHermite(6)
    ),
    "unequal teachers": unequal_teachers,
    "second readout": lambda: learn(sl.CommitteeReadout("relu", [1.0, -0.5]), 2, sl.TwoLayer(2, "relu"), gram=OBLIQUE),
    "gates": gates,
    "two classes": lambda: two_classes("relu"),
    "two classes smooth": lambda: two_classes("erf", batch=2).with_expectation(FEW),
    "two classes on means": lambda: two_classes("tanh", variance=0.0),
    "three classes": three_classes,
    "mixture regression": lambda: learn(
        sl.CommitteeReadout("square"), 1, sl.TwoLayer(2, "square"), data=sl.mixture([[0.5], [-0.5]], [0.6, 0.4], 0.3),
        expectation=FEW,
        algorithm=sl.OnePassSGD(0.05),
    ),
    "langevin": lambda: learn(
        sl.CommitteeReadout("erf"), 1, sl.TwoLayer(2, "erf"), algorithm=Langevin(0.5, 0.1), expectation=FEW
    ),
    "falling": lambda: learn(sl.CommitteeReadout("erf"), 1, sl.TwoLayer(2, "erf"), algorithm=Falling(1.0, 0.5)),
}  # fmt: skip

ALGORITHMS: dict[str, Callable[[], Any]] = {
    "HeavyBall beta": lambda: sl.HeavyBall(0.1, 0.8, ridge=0.05),
    "HeavyBall friction": lambda: sl.HeavyBall(0.5, friction=2.0, lr_second=0.3),
    "Nesterov beta": lambda: sl.Nesterov(0.1, 0.8, batch=2),
    "Nesterov friction": lambda: sl.Nesterov(0.5, friction=2.0, sphere=True),
    "Averaged": lambda: sl.Averaged(sl.OnePassSGD(0.5, lr_second=0.2)),
    "Averaged rate": lambda: sl.Averaged(sl.OnePassSGD(0.5), rate=2.0),
    "Averaged decay": lambda: sl.Averaged(sl.HeavyBall(0.2, 0.5), decay=0.9),
    "Clipped": lambda: sl.Clipped(sl.OnePassSGD(0.5, lr_second=0.2), norm=0.3),
    "Clipped each": lambda: sl.Clipped(sl.OnePassSGD(0.5, batch=3), norm=0.3, each=True),
    "Normalised": lambda: sl.Normalised(0.3, batch=2),
    "AdaGradNorm": lambda: sl.AdaGradNorm(0.5, ridge=0.05),
    "SAM": lambda: sl.SAM(sl.OnePassSGD(0.5, batch=2), radius=0.2),
    "Repeated": lambda: sl.Repeated(sl.OnePassSGD(0.3), times=2),
    "Private": lambda: sl.Private(sl.OnePassSGD(0.5, batch=2), norm=0.3, noise=0.5),
    "Muon": lambda: sl.Muon(0.3, batch=3),
    "Muon beta": lambda: sl.Muon(0.1, beta=0.8, lr_second=0.1, batch=2),
    "Scheduled": lambda: sl.Scheduled(sl.OnePassSGD(0.8, sphere=True), power=1.0, span=0.5, warmup=0.3),
    "Decayed": lambda: sl.Decayed(sl.HeavyBall(0.1, 0.5), decay=0.2),
    "Extragradient": lambda: sl.Extragradient(0.5, lr_second=0.2),
    "SignSGD": lambda: sl.SignSGD(0.3, batch=2),
    "Adam": lambda: sl.Adam(0.3, beta=0.8),
    "nested": lambda: sl.Averaged(sl.Clipped(sl.OnePassSGD(0.5, batch=2), norm=0.5), rate=2.0),
}
"""Algorithms by name, each learning the same committee."""


def with_algorithm(algorithm: Any) -> sl.ProjectionProblem:
    """A committee of erf units that moves by an algorithm; steps that are not linear are averaged over few points."""
    return sl.presets.committee(2, 2, noise=0.05, algorithm=algorithm, expectation=None if algorithm.linear else FEW)


def problems() -> dict[str, Callable[[], Any]]:
    """All problems by the first part of their keys; a preset without settings here is taken with its defaults."""
    found: dict[str, Callable[[], Any]] = {}
    for preset in dir(sl.presets):
        for setting, arguments in PRESETS.get(preset, {"": {}}).items():
            found[f"{preset} {setting}".strip()] = lambda preset=preset, arguments=arguments: getattr(sl.presets, preset)(
                **arguments
            )
    found |= {f"own {name}": make for name, make in OWN.items()}
    return found | {f"algorithm {name}": lambda make=make: with_algorithm(make()) for name, make in ALGORITHMS.items()}


# --- what is recorded --------------------------------------------------------------------------------------------------------


def variables(dataset: Any) -> dict[str, Any]:
    """The variables of a dataset, the ends of its runs and the kernel that made its steps."""
    found = {name: dataset[name].values for name in dataset.data_vars}
    found |= {"t_end": dataset.t_end.values, "status": dataset.status.values.astype(str)}
    return found | ({"kernel": dataset.attrs["kernel"]} if "kernel" in dataset.attrs else {})


def path(problem: Any, at: Level, start: Any = None, **more: Any) -> dict[str, Any]:
    """The dataset of a few runs at a level, from random weights unless given."""
    start = sl.RandomInit(at.d) if start is None else start
    how = dict(t_max=T_MAX, save=SAVE, runs=at.runs, seed=SEED, kernel=at.kernel, progress=False) | more
    return variables(sl.simulate(problem, at.level, start, **how))


def fields(problem: Any) -> dict[str, Any]:
    """Drift, its two parts, covariance and risk at one state and one time."""
    coordinates = getattr(problem, "coordinates", problem)  # 0.2 has its methods on the problem
    state, vector = coordinates.in_limit(sl.RandomInit(50).one(problem, seed=SEED)), problem.limit.vector
    population, corrector = problem.limit.drift_parts(state, 0.5)
    return {
        "drift": vector(problem.limit.drift(state, 0.5)),
        "population": vector(population),
        "corrector": vector(corrector),
        "covariance": problem.limit.covariance(state, 0.5),
        "risk": problem.limit.risk(state, 0.5),
    }


def spectrum(problem: Any) -> dict[str, Any]:
    """The Hessian's spectrum at a random state."""
    found = sl.hessian_spectrum(problem, sl.RandomInit(50).one(problem, seed=SEED), D)
    return {"eigenvalues": found.eigenvalues, "multiplicities": found.multiplicities}


def linearised(problem: Any) -> dict[str, Any]:
    """The drift to first order at a random state."""
    found = sl.linearise(problem, sl.RandomInit(50).one(problem, seed=SEED))
    return {"names": found.names, "drift": found.drift, "matrix": found.matrix, "rates": found.rates}


def local(problem: Any, point: Any) -> dict[str, Any]:
    """The diffusive limit near a fixed point, and paths of it."""
    found = sl.local_limit(problem, point)
    limit = {"drift": found.drift_matrix, "noise": found.noise_matrix, "rates": found.rates}
    paths = path(problem, Level(sl.Local(point, d=D)), point)
    return limit | {f"path {name}": value for name, value in paths.items()}


def points(problem: Any) -> dict[str, Any]:
    """Fixed points, in the order in which they are found."""
    found = list(sl.fixed_points(problem, count=16, seed=SEED, progress=False))
    return {
        "points": np.stack([problem.vector(each.point) for each in found]),
        "stability": [each.stability for each in found],
        "copies": [each.copies for each in found],
    }


def expanded(problem: Any) -> dict[str, Any]:
    """The first correction in 1/d along the ODE."""
    found = sl.expansion(problem, sl.FixedInit(0.3).one(problem), T_MAX, save=SAVE)
    return {name: found[name].values for name in found.data_vars}


def flown(problem: Any) -> dict[str, Any]:
    """The flow as a function, and its derivative by the start along one direction."""
    start = jax.tree.map(jnp.asarray, sl.FixedInit(0.3).one(problem))
    along = lambda state: problem.vector(sl.flow(problem, state, T_MAX))
    value, slope = jax.jvp(along, (start,), (jax.tree.map(jnp.ones_like, start),))
    return {"value": value, "slope": slope}


def stopped(problem: Any, at: Level) -> dict[str, Any]:
    """Runs that stop at a threshold, with an observable beside the risk."""
    observe = {"largest": lambda stats: abs(stats.M).max()}
    return path(problem, at, sl.FixedInit(0.3), until=sl.exits(0.8), observe=observe, t_max=10.0)


def analyses() -> dict[tuple[str, str], Callable[[], dict[str, Any]]]:
    """What is recorded beside paths and fields, by the name of the problem and the level or analysis."""
    retrieval = lambda: sl.presets.phase_retrieval(lr=0.1, noise=0.5)
    pair = lambda: sl.presets.phase_retrieval(width=2, lr=0.1, sphere=False)
    erf = lambda: sl.presets.committee(2, 2, noise=0.05)
    saddle = sl.Overlaps(a=[1.0], M=[[0.0]], Q=[[1.0]])
    found: dict[tuple[str, str], Callable[[], dict[str, Any]]] = {
        ("saddle of phase_retrieval", "analysis"): lambda: local(retrieval(), saddle),
        ("fixed_points of phase_retrieval", "analysis"): lambda: points(retrieval()),
        ("expansion of phase_retrieval", "analysis"): lambda: expanded(retrieval()),
        ("expansion of committee", "analysis"): lambda: expanded(erf()),
        ("flow of phase_retrieval", "analysis"): lambda: flown(pair()),
        ("reused samples of phase_retrieval", "sgd"): lambda: path(pair(), Level(sl.SGD(SPACE, reuse=30), SPACE, kernel="xla")),
        ("gradient flow of committee", "ode"): lambda: path(erf(), Level(sl.ODE(corrector=False), runs=2)),
        ("orthogonal start of quadratic_network", "chain lanes"): lambda: path(
            sl.presets.quadratic_network(3, 2, lr=0.2), LEVELS["chain lanes"], sl.OrthogonalInit(0.05)
        ),
    }
    for name, make in {"phase_retrieval": pair, "committee": erf, "own unequal teachers": unequal_teachers}.items():
        found[f"spectrum of {name}", "analysis"] = lambda make=make: spectrum(make())
        found[f"linearise {name}", "analysis"] = lambda make=make: linearised(make())
    for level in ("sgd", "chain xla", "chain lanes", "sde", "ode"):
        found["exits of phase_retrieval", level] = lambda at=LEVELS[level]: stopped(retrieval(), at)
    for name, make in {"phase_retrieval": pair, "committee": erf, "spiked_tensor": sl.presets.spiked_tensor}.items():
        found[f"unrolled steps of {name}", "sde"] = lambda make=make: path(make(), LEVELS["sde"], kernel="lanes")
    found["exits of binary_mixture", "chain lanes"] = lambda: stopped(
        sl.presets.binary_mixture(snr=10.0), LEVELS["chain lanes"]
    )
    return found


def everything() -> Iterator[tuple[str, str, Callable[[], dict[str, Any]]]]:
    """(name, level, what to compute) of all that is recorded."""
    for name, make in problems().items():
        yield name, "fields", lambda make=make: fields(make())
        for level, at in LEVELS.items():
            yield name, level, lambda make=make, at=at: path(make(), at)
    for (name, level), compute in analyses().items():
        yield name, level, compute


def first_sentence(error: Exception) -> str:
    """The text of an error up to its first period, with its class unless it is `BadInput`."""
    text = re.split(r"\.(?:\s|$)", str(error), maxsplit=1)[0]
    return text if isinstance(error, sl.BadInput) else f"{type(error).__name__}: {text}"


def record(file: str) -> None:
    """Compute everything and write it to a file, with a line for each problem."""
    begin, found, seconds = (time.perf_counter(), time.process_time()), {}, {}
    refused, failed, last = 0, [], ""
    for name, level, compute in everything():
        since = time.perf_counter()
        if name != last:
            print(f"\n{name}:" if last else f"{name}:", end="", flush=True)
        last = name
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # few runs and coarse expectations are on purpose
                entries = {key: np.asarray(value) for key, value in compute().items()}
            outcome = f"{time.perf_counter() - since:.1f}"
        except Exception as error:  # one combination must not stop the others
            entries = {"error": np.asarray(first_sentence(error))}
            if isinstance(error, sl.BadInput):
                refused, outcome = refused + 1, "refused"
            else:
                failed, outcome = [*failed, f"{name}/{level}: {entries['error']}"], "FAILED"
        found |= {f"{name}/{level}/{key}": value for key, value in entries.items()}
        seconds[level] = seconds.get(level, 0.0) + time.perf_counter() - since
        print(f" {level} {outcome}", end=",", flush=True)
    np.savez_compressed(file, **found)
    print("\n\nseconds by level: " + ", ".join(f"{level} {value:.0f}" for level, value in seconds.items()))
    print(f"{len(found)} keys from {sl.__file__}; {refused} combinations are refused with BadInput")
    print(f"{time.process_time() - begin[1]:.0f} s of CPU, {time.perf_counter() - begin[0]:.0f} s of time")
    print("\n".join(["errors other than BadInput:", *failed]) if failed else "no errors other than BadInput")


# --- comparison --------------------------------------------------------------------------------------------------------------


def difference(old: np.ndarray, new: np.ndarray) -> float:
    """The largest difference of two arrays relative to the largest entry; inf for other shapes, texts or places of NaN."""
    if old.shape != new.shape or old.dtype.kind != new.dtype.kind:
        return np.inf
    if old.dtype.kind not in "iufc":
        return 0.0 if (old == new).all() else np.inf
    same = (old == new) | (np.isnan(old) & np.isnan(new))
    if same.all():
        return 0.0
    if not (np.isfinite(old) & np.isfinite(new))[~same].all():
        return np.inf
    scale = np.abs(old[np.isfinite(old)]).max(initial=SMALLEST)
    return float(np.abs(new[~same] - old[~same]).max() / scale)


def identical(old: np.ndarray, new: np.ndarray) -> bool:
    """Whether two arrays agree in every bit; signs of zeros count. Texts have any length."""
    if old.dtype.kind == "U" and new.dtype.kind == "U":
        return old.shape == new.shape and bool((old == new).all())
    return old.dtype == new.dtype and old.shape == new.shape and old.tobytes() == new.tobytes()


def compare(old_file: str, new_file: str) -> bool:
    """Print how two recordings differ, and return whether they agree up to rounding."""
    with np.load(old_file) as old, np.load(new_file) as new:
        before, after = {key: old[key] for key in old.files}, {key: new[key] for key in new.files}
    levels: dict[str, list[str]] = {}
    for key in before.keys() & after.keys():
        levels.setdefault(key.split("/")[1], []).append(key)
    off = {key: difference(before[key], after[key]) for keys in levels.values() for key in keys}
    limit = {level: TOLERANCES.get(level, TOLERANCE) for level in levels}
    beyond = {key for key, value in off.items() if not value <= limit[key.split("/")[1]]}
    print(f"{'level':<12}{'arrays':>8}{'identical':>11}{'largest difference':>20}{'allowed':>10}{'beyond':>8}")
    for level, keys in sorted(levels.items()):
        equal, worst = sum(identical(before[key], after[key]) for key in keys), max(off[key] for key in keys)
        count = len(beyond.intersection(keys))
        print(f"{level:<12}{len(keys):>8}{equal:>11}{worst:>20.2g}{limit[level]:>10.0e}{count:>8}")
    differing = sorted((key for key in off if off[key] > 0), key=lambda key: (key not in beyond, -off[key], key))
    for key in differing[:10]:
        print(f"  {off[key]:.2g}{' BEYOND' if key in beyond else ''}  {key}")
        if before[key].dtype.kind == "U":
            print(f"    was  {before[key]}\n    is   {after[key]}")
    alone = {old_file: before.keys() - after.keys(), new_file: after.keys() - before.keys()}
    for file, keys in alone.items():
        if keys:
            print("\n  ".join([f"only in {file}:", *sorted(keys)]))
    agree = not beyond and not any(alone.values())
    print("the same up to rounding" if agree else "DIFFERENT")
    return agree


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("record", help="compute everything and keep it").add_argument("file")
    both = verbs.add_parser("compare", help="print how two recordings differ")
    both.add_argument("old")
    both.add_argument("new")
    asked = parser.parse_args()
    if asked.verb == "record":
        record(asked.file)
    elif not compare(asked.old, asked.new):
        sys.exit(1)


if __name__ == "__main__":
    main()
