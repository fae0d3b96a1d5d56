r"""
Sparse or homogeneous
=====================

Three units learn phase retrieval with both layers. If the second layer learns more slowly than the first, it stays
homogeneous. If it learns faster, units that align first take all of the weight: one orange line on the left, and on the
right a ratio near 1/3.
"""

import matplotlib.pyplot as plt
import numpy as np

import sgdlimits as sl

width, step = 3, 1 / 24
ratios = np.array([0.1, 1.0, 10.0])
plt.rcParams.update(sl.plot.PAPER)
figure, (left, right) = plt.subplots(1, 2, figsize=(7.8, 3.4), layout="constrained")
shares = []
for ratio in ratios:
    problem = sl.presets.single_index("square", width=width, lr=step * width, train_second=ratio)
    ode = sl.simulate(problem, sl.ODE(rtol=1e-7), sl.RandomInit(1000), t_max=15 / step, runs=6, save=31, seed=4)
    a = ode.a.values
    shares.append((a.sum(-1) ** 2 / (a**2).sum(-1) / width)[:, -1])
    if ratio in (0.1, 10.0):
        left.plot(ode.t * step, a[0], color="C0" if ratio < 1 else "C1", label=[f"$r = {ratio:g}$", None, None])
left.set(xlabel=r"$\gamma t/p$", ylabel="second layer $a_j$", title="one start")
left.legend()
right.semilogx(ratios, shares, "o", color="0.6", markersize=3)
right.semilogx(ratios, np.median(shares, axis=1), "k-")
right.set(
    xlabel="ratio $r$ of the learning rates", ylabel="participation ratio over $p$", ylim=(0, 1.05), title="end, 6 starts"
)
plt.show()
