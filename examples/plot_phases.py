r"""
Phases of learning, found in the data
=====================================

In each run `phases` finds the plateau of the risk, the time at which it is left, and how learning ends, for any problem.
A quadratic network first learns its norms; on the plateau its overlaps with the teachers grow at a known rate.
With more students than teachers the end is algebraic: risk times :math:`t^2` tends to a constant (dashed).
"""

import matplotlib.pyplot as plt
import numpy as np

import sgdlimits as sl

problem = sl.presets.quadratic_network(width=3, teachers=1, lr=0.05)
t = np.concatenate([np.linspace(0, 150, 76), np.geomspace(160, 4000, 40)])
runs = sl.simulate(problem, sl.ODE(), sl.OrthogonalInit(spread=1e-3), t_max=t[-1], save=t, runs=3)
found = sl.phases(runs)
print(found)

plt.rcParams.update(sl.plot.PAPER)
figure, (left, right) = plt.subplots(1, 2, figsize=(8.4, 3.4), layout="constrained")
left.plot(t, runs.risk.T, color="#0072B2", linewidth=0.9)
for phase, colour in (("plateau", "0.9"), ("descent", "0.8")):
    left.axvspan(float(found.data.begin.sel(phase=phase)[0]), float(found.data.end.sel(phase=phase)[0]), color=colour)
left.axhline(found.theory["level"], color="black", linestyle=":")
left.set(xlim=(0, 150), xlabel="$t$", ylabel="risk", title="plateau and descent of one run (grey)")
tail = sl.theory.quadratic.terminal_decay(problem)
right.loglog(t[1:], runs.risk.T[1:], color="#0072B2", linewidth=0.9)
right.loglog(t[76:], tail.constant / t[76:] ** 2, "k--", linewidth=1.0)
right.set(xlabel="$t$", title=f"tail: exponent {float(found.data.tail_exponent.mean()):.2f}")
plt.show()
