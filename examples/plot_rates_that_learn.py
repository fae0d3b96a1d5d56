r"""
Leaving the plateau is not learning
===================================

Three units (p = 3) learn phase retrieval with label noise of variance :math:`\Delta`. The learning rate that leaves the
plateau after the fewest samples is above :math:`2p/(12+\Delta)`. Beyond this value the final risk is high: without noise
perfect recovery is unstable there. Left: without noise, the risk is zero up to the dashed line and rises beyond it.
"""

import matplotlib.pyplot as plt
import numpy as np

import sgdlimits as sl
from sgdlimits.papers.mediocrity import theory as mediocrity

width, d = 3, 300
shares = np.array([0.06, 0.12, 0.18, 0.3])
plt.rcParams.update(sl.plot.PAPER)
figure, axes = plt.subplots(1, 2, figsize=(7.6, 3.3), layout="constrained", sharey=True)
for ax, noise in zip(axes, (0.0, 1.0), strict=True):
    problems = [sl.presets.phase_retrieval(width, lr=float(g * width), noise=noise) for g in shares]
    ode = [
        sl.simulate(each, sl.ODE(rtol=1e-6), sl.RandomInit(d), t_max=400, save=2).risk[0, -1] - noise / 2 for each in problems
    ]
    chain = [
        sl.simulate(each, sl.Chain(d), sl.RandomInit(d), t_max=80, runs=6, save=2).risk[:, -1].mean() - noise / 2
        for each in problems
    ]
    below = np.linspace(0.02, 0.2, 60)
    ax.plot(below, mediocrity.asymptotic_excess_risk(width, below * width, noise), "k-", lw=1, label="learnt state")
    ax.plot(shares, ode, "o", label="ODE")
    ax.plot(shares, chain, "x", label=f"chain, $d = {d}$")
    ax.axvline(mediocrity.usable_lr(width, noise) / width, color="0.6", ls="--")
    ax.axvline(mediocrity.optimal_lr(width, noise) / width, color="0.6", ls=":")
    ax.set(xlabel="lr / width", title=f"noise {noise:g}; dashed: usable, dotted: published")
axes[0].set(ylabel="excess risk at the end")
axes[0].legend(frameon=True, framealpha=1, edgecolor="white")
plt.show()
