"""
Exit time against the dimension
===============================

One-pass SGD takes a time of order log d to leave the plateau of phase retrieval. The exact chain leaves it earlier than the
quenched formula predicts, by the same amount at every dimension: SGD's own noise adds to the random start.
"""

import matplotlib.pyplot as plt
import numpy as np

import sgdlimits as sl

problem, threshold = sl.presets.phase_retrieval(lr=1 / 12), 0.1
dimensions = np.array([300, 1200, 2400])
means = []
for d in dimensions:
    start, until = sl.RandomInit(d), sl.exits(threshold)
    runs = sl.simulate(problem, sl.Chain(d), start, t_max=200, runs=200, until=until, progress=False)
    means.append(sl.summarise(sl.exit_times(runs, threshold)).mean)

plt.rcParams.update(sl.plot.PAPER)
fig, ax = plt.subplots(figsize=(4.6, 3.2), layout="constrained")
centre = np.array([mean.value for mean in means])
bars = np.abs([[mean.low - mean.value for mean in means], [mean.high - mean.value for mean in means]])
ax.errorbar(dimensions, centre, bars, fmt="o", capsize=3, label="exact chain, 95 %")
for average in ("annealed", "quenched", "noisy_ode"):
    ax.plot(dimensions, sl.theory.mediocrity.exit_time(problem, dimensions, threshold, average), label=average)
ax.set(xscale="log", xlabel="$d$", ylabel="exit time, samples per dimension")
ax.set_xticks(dimensions, dimensions)
ax.minorticks_off()
ax.legend()
plt.show()
