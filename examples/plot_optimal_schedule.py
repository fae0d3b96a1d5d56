r"""
The best learning rate at each time
===================================

Two erf units learn two others under label noise. `optimise` finds the piecewise constant rate with the least risk at the end,
by the gradient of the ODE. It is large while the units separate and falls about as 1/t afterwards, when only the noise is left.
The chain confirms the gain over the best constant rate at d = 1000.
"""

import matplotlib.pyplot as plt
import numpy as np

import sgdlimits as sl

make = lambda lr: sl.presets.committee(width=2, teachers=2, lr=lr, noise=0.1)
start = sl.FixedInit(np.array([[0.3, 0.1], [0.1, 0.2]]))
best = sl.optimise(make, start, 60, {"lr": sl.Control(pieces=50, low=0.0, high=4.0)})
best.check(d=1000, runs=50)
print(best)

plt.rcParams.update(sl.plot.PAPER)
left, right = plt.subplots(1, 2, figsize=(8, 3))[1]
values = best.controls["lr"].values
left.stairs(values, np.linspace(0, 60, len(values) + 1), baseline=None, label="optimal")
left.axhline(best.constants["lr"], color="0.6", label="best constant")
left.set(xlabel="$t$", ylabel="learning rate", ylim=(0, None))
left.legend()
constant = sl.simulate(best.baseline_problem, sl.ODE(), best.start, t_max=60)
right.semilogy(best.dataset.t, best.dataset.risk[0] - 0.05)
right.semilogy(constant.t, constant.risk[0] - 0.05, color="0.6")
right.set(xlabel="$t$", ylabel="excess risk")
