r"""
The step size that keeps its effect
===================================

SGD has learning rate :math:`\text{lr}\,d^{-s}`. The corrector, the effect of SGD's noise on the mean of the statistics,
grows as :math:`d^{1-s}`: it has a limit at s = 1, vanishes above, and diverges below. Left: matrix PCA in dimension 1000
from the same start at three values of s, with the limits at s = 1 and above (black). Right: the measured exponents of
the conditions of the limit theorem, minus the largest ones it allows, for statistics magnified by powers of d. The
conditions hold below the line, for fluctuations that are magnified by at most :math:`\sqrt d`.
"""

import matplotlib.pyplot as plt
import numpy as np

import sgdlimits as sl

start, t, d, snr = sl.Spike(m=0.3, r2=0.2), np.linspace(0, 2, 41), 1000, 2.0
plt.rcParams.update(sl.plot.PAPER)
figure, (left, right) = plt.subplots(1, 2, figsize=(8.4, 3.5), layout="constrained")
problem = sl.presets.spiked_tensor(order=2, snr=snr)
for s, color in ((0.75, "#009E73"), (1.0, "#0072B2"), (1.5, "#D55E00")):
    faster = sl.presets.spiked_tensor(order=2, snr=snr, lr=d ** (1 - s))
    runs = sl.simulate(faster, sl.Chain(d), start, t_max=2 * d ** (s - 1), save=t * d ** (s - 1), runs=8)
    left.plot(runs.t * d ** (1 - s), runs.r2.mean("run"), color=color, label=f"s = {s}")
for corrector in (True, False):
    limit = sl.simulate(problem, sl.ODE(corrector), start, t_max=2, save=t)
    left.plot(t, limit.r2[0], color="black", linewidth=0.8)
left.set(xlabel=r"time in $d^s$ samples", ylabel=r"$r_\perp^2$", title="chain and limits (black)")
left.legend()
powers, dynamics = np.linspace(0, 1, 11), sl.effective_dynamics(problem)
conditions = [dynamics.localizability(magnify=float(power)).conditions for power in powers]
for index, color in ((0, "#009E73"), (3, "#0072B2"), (4, "#D55E00")):
    excess = [each[index].measured - each[index].allowed for each in conditions]
    right.plot(powers, excess, "o-", color=color, markersize=3, label=conditions[0][index].name[3:])
right.axhline(0, color="grey", linestyle=":")
right.set(xlabel="power of d that magnifies", ylabel="exponent minus the allowed one", title="conditions")
right.legend(fontsize=7)
plt.show()
