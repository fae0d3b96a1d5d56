"""What users type: mypy checks that lists stand for arrays, names for functions and plain numbers for both. Nothing runs."""

import jax.numpy as jnp
import xarray as xr

import sgdlimits as sl


def statistics() -> None:
    start = sl.Overlaps(a=[2, -2], M=[[0.3, 0.2], [0.1, -0.4]], Q=[[1, 0], [0, 1]])
    sl.Overlaps({"a": [1.0]}, jnp.zeros((1, 1)), jnp.eye(1))
    sl.Particles(a=[1.0], M=[[0.1]], q=[1.0])
    sl.Spike(m=0.1, r2=1)
    sl.FixedInit(0.5)
    sl.FixedInit([[0.1, 0.2]])
    print(sl.presets.phase_retrieval(lr=1 / 12).drift(start).M[0, 0])


def problems() -> str:
    sl.Target(sl.QuadraticReadout([[1.0, 0.2], [0.2, 3.0]]), gram=[[1, 0], [0, 2]], noise=0.1)
    sl.Target(sl.CommitteeReadout("erf", second=[1, -1]), 2)
    sl.presets.gaussian_mixture([[-1.0], [0.0], [1.0]], [0, 1, 0], [0.3, 0.4, 0.3], snr=20)
    sl.presets.committee(width=4, activation=jnp.tanh, algorithm=sl.HeavyBall(0.1, 0.9))
    sl.ProjectionProblem(
        target=sl.Target(lambda fixed: fixed[0] * fixed[1], teachers=2),
        network=sl.TwoLayer(2, sl.Polynomial([0, 0, 1])),
        loss=lambda prediction, label: (prediction - label) ** 2,
        algorithm=sl.OnePassSGD(lr=1, lr_second=0.5),
    )
    sl.presets.committee(lr=sl.Steps([5.0], [0.2, 0.1]), noise=lambda t: 0.1 / (1.0 + t))
    problem: sl.Problem = sl.presets.phase_retrieval().replace(lr=0.1)
    return sl.latex(problem) + sl.__version__


def simulations() -> xr.Dataset:
    problem = sl.presets.single_index("he3", lr=0.01)
    runs = sl.simulate(problem, sl.Chain(d=300), sl.RandomInit(d=300), t_max=20, runs=16, save=[0, 1, 20], until=sl.exits(0.1))
    assert sl.problem_of(runs) == problem
    over = sl.grid(lr=[0.1, 0.2], d=[50, 100])
    return sl.sweep("phase_retrieval", "chain", "random", over=over, folder="times", runs=4, t_max=1)
