"""Jobs that are too large for this machine are refused in one sentence with the size, before anything is made."""

from __future__ import annotations

import time

import numpy as np
import pytest

import sgdlimits as sl
from sgdlimits import progress, size

P = sl.presets.phase_retrieval()
MANY = 10**10

go = lambda problem=P, level=None, start=None, **how: sl.simulate(
    problem, level or sl.Chain(30), start or sl.RandomInit(30), **{"t_max": 1, **how}
)
LARGE = {
    "runs": lambda: go(runs=10**12),
    "saved times": lambda: go(save=10**12),
    "a batch of samples": lambda: go(P.with_algorithm(sl.OnePassSGD(0.1, batch=10**9)), sl.Chain(10**9), sl.RandomInit(10**9)),
    "samples of a diffusion": lambda: go(level=sl.SDE(30, samples=MANY)),
    "width": lambda: go(sl.presets.phase_retrieval(width=10**6)),
    "particles": lambda: go(sl.presets.committee(width=10**9), sl.MeanField()),
    "teachers": lambda: sl.presets.quadratic_network(teachers=10**6),
    "outputs": lambda: sl.TwoLayer(2, outputs=10**12),
    "starts": lambda: sl.RandomInit(30).sample(P, runs=10**12),
    "one start": lambda: sl.FixedInit(0.1).one(sl.presets.phase_retrieval(width=10**6)),
    "searches": lambda: sl.fixed_points(P, count=MANY),
    "basins": lambda: sl.fixed_points(P, basins=sl.RandomInit(30), runs=MANY),
    "nodes": lambda: sl.Sobol(4, MANY),
    "coefficients": lambda: sl.hermite_coefficients("erf", MANY),
    "resamples": lambda: sl.summarise(np.ones(3), resamples=MANY),
    "exit times": lambda: sl.exit_table(P, 30, 0.5, runs=10**12),
    "critical points": lambda: sl.theory.quadratic.critical_points(sl.presets.quadratic_network(1000, 1000)),
    "weights": lambda: sl.theory.quadratic.CriticalFamily(2, 1, 0, 0).weights(10**11),
    "a grid": lambda: sl.theory.regimes.phase_diagram(np.zeros(10**5), np.zeros(10**5)),
    "conditions": lambda: sl.effective_dynamics(P).localizability(samples=10**11),
    "steps of a batch": lambda: sl.Repeated(sl.OnePassSGD(0.1), times=10**9),
}


@pytest.mark.parametrize("what", LARGE)
def test_a_job_that_is_too_large_is_one_sentence(what, monkeypatch):
    monkeypatch.setattr(size, "available_memory", lambda: 2.0**34)  # also on a machine that has more
    with pytest.raises(sl.BadInput, match=r"allow\. |more than can be listed|must be below") as caught:
        LARGE[what]()
    text = str(caught.value)
    assert text.endswith(".")
    assert "\n" not in text


def test_a_bar_says_how_long_all_takes_where_that_is_long(capsys, monkeypatch):
    monkeypatch.setattr(progress, "MIN_LONG_SECONDS", 30.0)
    with progress.bar(total=100, desc="chain", bar_format="{desc}:{percentage:3.0f}%{long}", delay=0) as shown:
        shown.start_t = time.time() - 100
        shown.update(1)
        assert str(shown) == "chain:  1%"  # the first work has what is compiled, and tells no pace
        shown.start_t = time.time() - 160
        shown.update(1)
        assert str(shown).startswith("chain:  2%, about 1.7 hours in all; what is done is kept on Ctrl-C")
        monkeypatch.setattr(progress, "MIN_LONG_SECONDS", 300.0)
        shown.update(97)
        assert str(shown) == "chain: 99%"
