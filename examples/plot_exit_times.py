r"""
Exit times and runs that have not exited
========================================

When does SGD escape mediocrity? One unit learns phase retrieval from random weights at :math:`d = 1200`. A run exits
at T once its excess risk has fallen by the fraction T of its value at the start, and is stopped there, so that only the
exit time is stored. Runs that have not exited at the end are censored: the survival curves stop above zero, the median
is still correct, and the mean is only a lower bound.
"""

import warnings

import matplotlib.pyplot as plt

import sgdlimits as sl

d, noise = 1200, 0.1
problem = sl.presets.phase_retrieval(lr=1 / (12 + noise), noise=noise)


def exits(T):
    """The exit times of 200 runs of the exact chain."""
    runs = sl.simulate(problem, sl.Chain(d), sl.RandomInit(d), t_max=40, runs=200, until=sl.exits(T))
    return sl.exit_times(runs, T)


datasets = {f"$T = {T}$": exits(T) for T in (0.1, 0.5, 0.9)}
with warnings.catch_warnings(action="ignore", category=sl.CensoredWarning):
    for name, dataset in datasets.items():
        print(name, "in thousands of samples:", sl.summarise(dataset).scaled(d / 1000))

plt.rcParams.update(sl.plot.PAPER)
figure, ax = plt.subplots(figsize=(5.6, 3.8), layout="constrained")
sl.plot.survival(datasets, ax)
sl.plot.samples_axis(ax, d)
plt.show()
