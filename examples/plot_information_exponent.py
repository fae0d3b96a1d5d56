r"""
The information exponent
========================

One unit learns :math:`y = g(w_*\cdot x)` with the activation g. The order n of the first nonzero Hermite coefficient
of g determines the number of samples: of the order of :math:`d`, :math:`d \log d` and :math:`d^2`
for n = 1, 2 and 3, at a learning rate that must fall with d from n = 3 on. Thin lines are runs of the exact chain
from the typical overlap of random weights, thick lines their median; dotted lines are the mean time predicted by the
theory with SGD's own noise.
"""

import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import sgdlimits as sl

d = 64
targets = {"$x$": "linear", "$x^2 - 1$": "he2", "soft cubic": lambda x: (x**3 - 3 * x / 1.3) * jnp.exp(-0.15 * x**2)}

plt.rcParams.update(sl.plot.PAPER)
figure, ax = plt.subplots(figsize=(6, 3.8), layout="constrained")
for colour, (name, target) in zip(("#0072B2", "#D55E00", "#009E73"), targets.items(), strict=True):
    n = sl.information_exponent(target)
    lr = sl.recommended_lr(sl.presets.single_index(target), d)
    problem = sl.presets.single_index(target, lr=lr)
    t = sl.theory.single_index.exit_time(problem, d, overlap=0.5, noise=True)
    save = np.geomspace(t / 20, 4 * t, 50)
    runs = sl.simulate(problem, sl.Chain(d), sl.FixedInit(d**-0.5), t_max=4 * t, runs=32, save=save)
    m = abs(runs.M[:, :, 0, 0])
    ax.plot(d * runs.t, m.T, color=colour, linewidth=0.4, alpha=0.4)
    ax.plot(d * runs.t, m.median("run"), color=colour, linewidth=2, label=f"{name}: n = {n}, lr = {lr:.2g}")
    ax.axvline(d * t, color=colour, linestyle=":")
ax.set(xscale="log", xlabel=f"samples, $d = {d}$", ylabel="overlap with the teacher", ylim=(0, 1))
figure.legend(loc="outside upper center", ncols=3, handlelength=1, columnspacing=1)
plt.show()
