r"""
Where SGD can end
=================

Two relu units learn two classes without noise inside them. The search finds two stable points, where each unit serves its
own class, two rings, where both serve the same one, and the origin. The flow is drawn in the plane :math:`v_i = m_i`, which
is invariant: second layers of different signs lead to a stable point, second layers of equal signs to a ring.
"""

import jax
import matplotlib.pyplot as plt
import numpy as np

import sgdlimits as sl

problem = sl.presets.binary_mixture(snr=float("inf"), ridge=0.1)
found = sl.fixed_points(problem, count=32)
print(found)

# %%
# The rings are unstable only at their ends, where one unit is zero and may move to the other class.

grid = np.linspace(-1.7, 1.7, 30)
v = np.stack(np.meshgrid(grid, grid), axis=-1).reshape(-1, 2)
states = sl.Overlaps(v, v[:, :, None], v[:, :, None] * v[:, None])
slope = np.asarray(jax.jit(jax.vmap(problem.drift))(states).a).reshape(30, 30, 2)

plt.rcParams.update(sl.plot.PAPER)
figure, ax = plt.subplots(figsize=(4.6, 4.4), layout="constrained")
ax.streamplot(grid, grid, slope[..., 0], slope[..., 1], color="0.75", linewidth=0.7, arrowsize=0.7)
marks, angle = {"stable": "C0o", "unstable": "C0x"}, np.linspace(0, np.pi / 2, 50)
for each in found:
    a = each.point.a
    for sign in (1, -1):
        ring = sign * np.hypot(*a) * np.stack([np.cos(angle), np.sin(angle)])
        ax.plot(*(ring if each.dimension else sign * a), "C1" if each.dimension else marks[each.stability], linewidth=2.5)
ax.set(xlabel="$v_1$", ylabel="$v_2$", aspect="equal", title="fixed points: stable (dots), rings (orange)")
plt.show()
