"""
Two Gaussian classes: half of the runs miss the optimum
=======================================================

A network with two relu units learns to classify two Gaussian clusters. The signs of its second layer at the start decide
whether it finds the optimum, one unit for each class (blue paths); otherwise (orange) both units end on a ring where
they share one class.
"""

import matplotlib.pyplot as plt
import numpy as np

import sgdlimits as sl

d, ridge = 250, 0.1
problem = sl.presets.binary_mixture(snr=100, ridge=ridge)
runs = sl.simulate(problem, sl.Chain(d), sl.RandomInit(d), t_max=40, runs=100, save=21, progress=False)

# %%
# Paths of the overlaps of the two units with the mean, from the start (near zero) to the end.

m = runs.M.values[:, :, :, 0]
optimal = m[:, -1].prod(axis=1) < 0
radius = sl.theory.effective.ring_radius(ridge, weight=0.5)
angle = np.linspace(0, np.pi / 2, 50)
plt.rcParams.update(sl.plot.PAPER)
figure, ax = plt.subplots(figsize=(4.4, 4.4), layout="constrained")
for path, best in zip(m, optimal, strict=True):
    ax.plot(*path.T, color="tab:blue" if best else "tab:orange", linewidth=0.4, alpha=0.6)
ax.plot(*m[:, -1].T, "k.", markersize=3, label=f"ends; {optimal.mean():.0%} at the optimum")
for sign in (1, -1):
    ring = sign * radius * np.stack([np.cos(angle), np.sin(angle)])
    ax.plot(*ring, "k-", linewidth=1, label="ring" if sign == 1 else None)
ax.plot([radius, -radius], [-radius, radius], "rx", markersize=10, label="optimum for snr = inf")
ax.set(xlabel="$m_1$", ylabel="$m_2$", aspect="equal")
figure.legend(loc="outside lower center", ncols=3, fontsize=7, columnspacing=1, handlelength=1)
plt.show()
