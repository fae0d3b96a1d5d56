r"""
Which limit holds, and where there is none
==========================================

With :math:`d^\kappa` units and the learning rate :math:`d^{-\delta}`, SGD follows gradient flow for :math:`\kappa+\delta > 0`,
and the ODE with its corrector (the effect of noise on the mean) for :math:`\kappa+\delta = 0`. For negative sums the
noise of SGD dominates, and time is counted in units of its own: runs agree as d grows for sums above -1/2, and differ at
every d from there on. Here the width is one unit, with 24 runs of the exact chain at each d.
"""

import matplotlib.pyplot as plt
import numpy as np

import sgdlimits as sl

for exponents in ((0, 0.5), (0, 0), (0, -0.25), (0, -0.5)):
    print(f"kappa = {exponents[0]:g}, delta = {exponents[1]:g}:", sl.theory.regimes.regime(*exponents), sep="\n")
print("in numbers:", sl.theory.regimes.term_sizes(sl.presets.committee(width=2, teachers=1, lr=0.1), d=1000), sep="\n")

plt.rcParams.update(sl.plot.PAPER)
figure, axes = plt.subplots(1, 2, figsize=(8.4, 3.5), layout="constrained", sharey=True)
for ax, delta in zip(axes, (-0.25, -0.5), strict=True):
    for d, colour in ((10**4, "#56B4E9"), (10**6, "#D55E00")):
        lr = float(d) ** -delta
        t = np.arange(1, 41) / lr**2
        problem = sl.presets.committee(width=1, teachers=1, lr=lr, noise=0.1)
        runs = sl.simulate(problem, sl.Chain(d), sl.FixedInit(0.1), t_max=t[-1], save=t, runs=24)
        ax.plot(lr**2 * runs.t, runs.Q[..., 0, 0].T, color=colour, linewidth=0.6, alpha=0.6)
        ax.plot([], [], color=colour, label=f"$d = 10^{np.log10(d):.0f}$")
    ax.set(xlabel=r"$(\gamma/p)^2 t$", title=rf"$\delta = {delta:g}$: {sl.theory.regimes.regime(0, delta).name}")
axes[0].set_ylabel(r"squared norm $Q_{11}$")
axes[0].legend()
plt.show()
