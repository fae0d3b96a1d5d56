r"""
SGD's own noise leaves the plateau earlier
==========================================

Near the saddle of phase retrieval, SGD's noise adds to the random overlaps at the start. The exact chain (dots) exits
:math:`\log(1+\kappa)/2\omega_M` samples per dimension before the ODE averaged over random starts (dashed), with the growth
rate :math:`\omega_M` of the overlaps and the variance :math:`\kappa` of the noise over that of the random start.
"""

import matplotlib.pyplot as plt
import numpy as np

import sgdlimits as sl
from sgdlimits.papers.mediocrity import theory as mediocrity

d, threshold = 300, 0.1
rates = np.linspace(0.03, 0.13, 5)


def measured(lr):
    """The chain's mean exit time and its interval."""
    problem = sl.presets.phase_retrieval(lr=lr)
    runs = sl.simulate(problem, sl.Chain(d), sl.RandomInit(d), t_max=500, runs=200, until=sl.exits(threshold))
    mean = sl.summarise(sl.exit_times(runs, threshold)).mean
    return mean.value, mean.value - mean.low, mean.high - mean.value


value, *bars = np.transpose([measured(float(lr)) for lr in rates])
plt.rcParams.update(sl.plot.PAPER)
figure, ax = plt.subplots(figsize=(4.8, 3.4), layout="constrained")
fine = np.linspace(0.025, 0.135, 20)
styles = {"ode": "ODE over random starts", "noisy_ode": "minus $\\log(1+\\kappa)/2\\omega_M$", "backward": "backward equation"}
for (average, label), line in zip(styles.items(), ("--", "-", ":"), strict=True):
    problems = [sl.presets.phase_retrieval(lr=float(lr)) for lr in fine]
    ax.plot(fine, [mediocrity.exit_time(each, d, threshold, average) for each in problems], line, label=label)
ax.errorbar(rates, value, bars, fmt="ko", markersize=4, label="exact chain")
ax.set(xlabel="learning rate", ylabel=f"mean exit time, $d = {d}$, $T = {threshold}$")
ax.legend()
plt.show()
