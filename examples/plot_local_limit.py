r"""
Noise across a ring
===================

Two units that both serve one cluster of a binary mixture have a ring of fixed points. Its diffusive limit has
rank one: SGD fluctuates across the ring and not along it. Left: late states of the exact chain, magnified by
:math:`\sqrt d`, with two standard deviations of the limit. Right: the variance across the ring against time, from
the chain and from `Local`, and its stationary value from the Lyapunov equation.
"""

import matplotlib.pyplot as plt
import numpy as np

import sgdlimits as sl

d, radius = 400, sl.theory.effective.ring_radius(ridge=0.1, weight=0.5)
a = radius * np.array([0.8, 0.6])
problem, point = sl.presets.binary_mixture(snr=float("inf"), ridge=0.1), sl.Overlaps(a=a, M=a[:, None], Q=np.outer(a, a))
limit = sl.local_limit(problem, point)
print(limit)
second = [limit.names.index(f"a[{j}]") for j in range(2)]
spread = 2 * np.sqrt(np.trace(limit.stationary[np.ix_(second, second)]))

plt.rcParams.update(sl.plot.PAPER)
figure, (left, right) = plt.subplots(1, 2, figsize=(8.4, 3.5), layout="constrained")
for level, color in ((sl.Chain(d), "#0072B2"), (sl.Local(point, d), "#D55E00")):
    y = np.sqrt(d) * (sl.simulate(problem, level, point, t_max=24, save=49, runs=500).a - a)
    across = y.values @ a / radius
    right.plot(y.t, across.var(0), color=color, label=level.name)
    if level.name == "chain":
        left.plot(*y[:, -1].values.T, ".", color=color, markersize=3, zorder=3, label="chain")
left.plot(*np.outer(a / radius, [-spread, spread]), color="black", linewidth=4, alpha=0.3, label="limit")
left.plot(*np.outer([-a[1], a[0]], [-0.2, 0.2]), color="grey", linestyle="--", label="along the ring")
left.legend(loc="lower right", fontsize=7)
left.set(xlabel=r"$\sqrt{d}\,(a_1 - a_1^*)$", ylabel=r"$\sqrt{d}\,(a_2 - a_2^*)$", aspect="equal")
right.axhline(spread**2 / 4, color="grey", linestyle=":", label="Lyapunov")
right.set(xlabel="t", ylabel="variance across the ring")
right.legend()
plt.show()
