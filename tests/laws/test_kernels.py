"""Kernels make the same paths: they are told apart by speed alone."""

from __future__ import annotations

import inspect

import jax.numpy as jnp
import numpy as np
import pytest
from contracts.matrix import PROBLEMS

import sgdlimits as sl
from sgdlimits.algorithm import ALGORITHMS
from sgdlimits.algorithm.base import Wrapper
from sgdlimits.algorithm.coordinates import CoordinatewiseAlgorithm
from sgdlimits.kernel import cache, lanes
from sgdlimits.kernel.choose import is_gpu_available
from sgdlimits.kernel.compiler import llvm

D, STEPS = 200, 1000
GO = {"t_max": STEPS / D, "runs": 5, "save": 3, "progress": False}


NO_GPU = pytest.mark.skipif(not is_gpu_available(), reason="no GPU, or no CuPy")


@pytest.fixture(params=["lanes", pytest.param("cuda", marks=NO_GPU)])
def fast(request):
    """The kernels that are compared with `xla`."""
    return request.param


@pytest.fixture(autouse=True)
def optimised(monkeypatch):
    """Compiled steps are those that users have, also where what JAX compiles is not optimised."""
    monkeypatch.setattr(llvm, "is_optimisation_off", lambda: False)


def run(problem, kernel, d=D, level=None, **changes):
    return sl.simulate(problem, level or sl.Chain(d), sl.RandomInit(d), **{**GO, "kernel": kernel, **changes})


def same_paths(problem, fast, rtol=1e-9, reference="xla", **changes):
    """The dataset of the fast kernel, which agrees with the reference."""
    one, other = run(problem, fast, **changes), run(problem, reference, **changes)
    assert (one.attrs["kernel"], other.attrs["kernel"]) == (fast, reference)
    assert one.status.values.tolist() == other.status.values.tolist()
    np.testing.assert_array_equal(one.t_end, other.t_end)
    for name in other.data_vars:
        np.testing.assert_allclose(one[name], other[name], rtol=rtol, atol=rtol, err_msg=name)
    return one


@pytest.mark.parametrize("name", PROBLEMS)
def test_every_problem_of_the_contracts_has_the_paths_of_xla(name, fast):
    """Every preset is among them. The risk, which steps do not use, by a few points."""
    problem = PROBLEMS[name]()
    quick = problem.with_expectation(sl.Sobol(3, 2)) if isinstance(problem, sl.ProjectionProblem) else problem
    same_paths(quick, fast, d=1024, t_max=1.0)


NEEDED = {"heavy_ball": {"beta": 0.5}, "nesterov": {"beta": 0.5}, "repeated": {"times": 2}}
"""What rules need beyond a learning rate; other arguments without a default are 0.5."""


def with_optimiser(name):
    """Two units: their velocities, which begin at zero, are parallel after a step, where rounding must choose no axis."""
    rule, width = ALGORITHMS[name], 2
    base = sl.OnePassSGD(0.5) if issubclass(rule, Wrapper) else 0.5
    arguments = list(inspect.signature(rule).parameters.values())[1:]
    more = {each.name: 0.5 for each in arguments if each.default is each.empty} | NEEDED.get(name, {})
    return sl.presets.committee(width, 2, "erf", lr=0.5, noise=0.1).with_algorithm(rule(base, **more))


ON_THE_CHAIN = [name for name, rule in ALGORITHMS.items() if not issubclass(rule, CoordinatewiseAlgorithm)]


@pytest.mark.parametrize("name", ON_THE_CHAIN)
def test_every_rule_has_the_paths_of_xla(name, fast):
    same_paths(with_optimiser(name), fast)


@pytest.mark.full
@pytest.mark.parametrize("beta", [0.0, 0.5])
def test_muon_of_batches_has_the_paths_of_xla(beta, fast):
    """At a rate at which no unit's path is chosen by rounding."""
    same_paths(sl.presets.committee(3, 3, "erf", algorithm=sl.Muon(0.3, beta, batch=4)), fast)


DIFFUSIONS = ("unequal_teachers", "committee", "spiked_tensor")
"""The sphere, directions that are not orthogonal, a second layer; a drift in closed form; a root of the covariance."""


@pytest.mark.parametrize("name", DIFFUSIONS)
def test_the_diffusion_has_the_paths_of_xla(name, fast):
    same_paths(PROBLEMS[name](), fast, level=sl.SDE(D, dt=0.01), rtol=1e-8)


def test_a_step_of_too_many_operations_is_left_to_xla(fast):
    """A drift that is a sum over many nodes."""
    with pytest.raises(sl.BadInput, match=f"kernel='{fast}' does not support more than 50000 operations"):
        run(PROBLEMS["own_mixture"](), fast, level=sl.SDE(D, dt=0.01))


@pytest.mark.parametrize("batch", [1, 3])
def test_batches_sphere_second_layer_and_small_dimensions(batch, fast):
    rule = sl.OnePassSGD(0.3, lr_second=0.2, ridge=0.1, batch=batch)
    same_paths(sl.presets.committee(3, 2, "tanh", noise=0.1, algorithm=rule), fast, d=60, t_max=10)
    same_paths(sl.presets.phase_retrieval(3, lr=0.3), fast, d=3, t_max=100)


CONDITIONS = {
    "risk": lambda: (sl.presets.phase_retrieval(2, lr=0.2), sl.exits(0.3)),
    "overlap": lambda: (sl.presets.phase_retrieval(2, lr=0.2), lambda stats: abs(stats.M).max() > 0.4),
    "a dear risk": lambda: (sl.presets.committee(3, 2, "erf", lr=1.0, noise=0.01), sl.exits(0.3)),
    "a dear condition": lambda: (
        sl.presets.committee(3, 2, "erf", lr=1.0, noise=0.01),
        lambda stats: jnp.arcsin(jnp.tanh(stats.Q @ stats.Q @ stats.Q)).sum() > 5,
    ),
}


@pytest.mark.parametrize("name", CONDITIONS)
def test_runs_stop_at_the_same_step(name, fast):
    problem, until = CONDITIONS[name]()
    assert (same_paths(problem, fast, until=until, runs=21, t_max=60, save=2).status == "stopped").any()


LARGE = {
    "averages": lambda: (
        sl.presets.binary_mixture(snr=4.0, width=1, algorithm=sl.Averaged(sl.OnePassSGD(0.5, lr_second=0.5))),
        0.05,
    ),
    "smooth": lambda: (sl.presets.committee(2, 1, "tanh", lr=1.0), 0.5),
    "classes": lambda: (sl.presets.gaussian_mixture([[-1], [0], [1]], [0, 1, 0.2], [0.3, 0.4, 0.3], snr=5.0), 0.05),
    "four units": lambda: (sl.presets.xor_mixture(snr=50.0, ridge=0.0), 0.02),
}
"""Risks by quadrature, of more than a million operations, and thresholds: with more directions, and with labels between."""


@pytest.mark.parametrize("name", LARGE)
def test_runs_stop_at_the_same_step_where_the_host_is_asked(name):
    """Averages are short vectors at first, whose factors differ by more than rounding."""
    problem, threshold = LARGE[name]()
    how = {"until": sl.exits(threshold), "runs": 5, "d": 40, "t_max": 7, "save": 2}
    data = same_paths(problem, "lanes", rtol=1e-6 if name == "averages" else 1e-9, **how)
    assert (data.status == "stopped").any()


def test_a_run_does_not_depend_on_the_runs_beside_it(fast):
    problem, go = sl.presets.committee(2, 1, lr=0.5), {"until": sl.exits(0.2), "t_max": 20}
    many, few = run(problem, fast, runs=21, **go), run(problem, fast, runs=21, batch=4, **go)
    assert many.identical(few)


def test_normal_numbers_in_single_precision_are_those_of_all_kernels_and_near_the_others(fast):
    """A path is as far from the other as rounding of its numbers takes it in 1,000 steps."""
    problem = sl.presets.committee(2, 1, lr=0.5, noise=0.1)
    same_paths(problem, f"{fast}:f32", reference="xla:f32", rtol=2e-5)  # roots and sums in single precision are not the same
    same_paths(problem, f"{fast}:f32", reference=fast, rtol=2e-5)


@pytest.mark.full
def test_exit_times_have_one_law(same_law, fast):
    """With two seeds."""
    problem, go = sl.presets.phase_retrieval(lr=0.08), {"until": sl.exits(0.5), "t_max": 400, "runs": 400, "d": 100}
    exits = [run(problem, kernel, seed=seed, **go).t_end.values for kernel, seed in ((fast, 1), ("xla", 2))]
    same_law({"t": exits[0]}, {"t": exits[1]})


def test_one_step_after_the_other_has_the_paths_of_the_loop(fast):
    problem = sl.presets.phase_retrieval(lr=0.05)
    for kernel in ("xla", fast):
        often, once = (run(problem, kernel, d=30, t_max=2, save=save) for save in (61, 2))
        np.testing.assert_allclose(often.M.values[:, -1], once.M.values[:, -1], rtol=1e-12)


def test_the_kernel_is_chosen_asked_for_and_recorded(monkeypatch):
    problem = sl.presets.phase_retrieval()
    assert run(problem, None).attrs["kernel"] == ("cuda" if is_gpu_available() else "lanes")
    monkeypatch.setenv("SGDLIMITS_KERNEL", "xla")
    assert run(problem, None).attrs["kernel"] == "xla"
    monkeypatch.setenv("SGDLIMITS_KERNEL", "lanes")
    weights = sl.simulate(problem, sl.SGD(10), sl.RandomInit(10), t_max=0.5, save=2, progress=False)
    assert weights.attrs["kernel"] == "xla"
    assert "kernel" not in sl.simulate(problem, sl.ODE(), sl.FixedInit(0.1), t_max=0.5, save=2, progress=False).attrs
    with pytest.raises(sl.BadInput, match="kernel must be one of xla, lanes, cuda, with or without the suffix :f32; got 'gpu'"):
        run(problem, "gpu")
    muon = sl.presets.committee(9, 2, algorithm=sl.Muon(0.1))
    with pytest.raises(sl.BadInput, match="kernel='lanes' does not support eigh"):
        run(muon, "lanes")


@pytest.mark.skipif(is_gpu_available(), reason="there is a GPU")
def test_where_no_gpu_is_there_a_sentence_says_what_to_do():
    with pytest.raises(sl.BadInput, match=r"needs an NVIDIA GPU and CuPy.* Install sgdlimits\[gpu\]"):
        run(sl.presets.phase_retrieval(), "cuda")


def test_code_on_disk_is_read_and_repaired(tmp_path, monkeypatch):
    monkeypatch.setattr(cache, "cache_folder", lambda: tmp_path)
    problem, made = sl.presets.phase_retrieval(1, lr=0.077, noise=0.3), []
    machine = lanes._host_machine()
    whole = type(machine).compile_object
    monkeypatch.setattr(type(machine), "compile_object", lambda self, text: made.append(1) or whole(self, text))

    def again():
        lanes._load_compiled_code.cache_clear()
        return run(problem, "lanes")

    def damage(entry):
        entry.write_bytes(entry.read_bytes()[: sizes[entry] // 2])

    first = again()
    key, program, step = sorted(tmp_path.iterdir())
    assert key.name == cache.KEY_FILE
    sizes = {entry: entry.stat().st_size for entry in (program, step)}
    assert (program.name[:6], step.name[:5]) == ("lanes-", "step-")
    assert len(made) == 1
    assert again().identical(first)
    damage(step)
    assert again().identical(first)
    assert len(made) == 1
    damage(step)
    damage(program)
    assert again().identical(first)
    assert len(made) == 2
    assert {entry: entry.stat().st_size for entry in tmp_path.iterdir() if entry != key} == sizes


def test_runs_that_diverge_end_where_they_do_in_xla(fast):
    problem = sl.presets.phase_retrieval(lr=0.05, sphere=False)
    norms = np.array([0.5, 40.0, 0.7, 60.0])
    start = sl.Overlaps(np.ones((4, 1)), np.zeros((4, 1, 1)), norms[:, None, None])
    go = dict(t_max=3, runs=4, save=7, progress=False)
    with pytest.warns(sl.DivergedWarning):
        one, other = (sl.simulate(problem, sl.Chain(60), start, kernel=kernel, **go) for kernel in (fast, "xla"))
    assert one.status.values.tolist() == other.status.values.tolist() == ["finished", "diverged", "finished", "diverged"]
    np.testing.assert_array_equal(one.t_end, other.t_end)
    np.testing.assert_allclose(one.Q, other.Q, rtol=1e-9)


def test_llvm_is_not_imported_before_it_is_needed():
    import subprocess
    import sys

    code = "import sys, sgdlimits, sgdlimits.level; assert not any(name.startswith('llvmlite') for name in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
