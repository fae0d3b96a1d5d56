"""
A quadratic network leaves its plateau
======================================

Two squared units learn two orthonormal teachers, from orthonormal students whose overlaps M with the teachers are small.
All overlaps wait on a plateau and then grow together. A sum of squares is invariant under rotations of the teachers, so M
tends not to a permutation but to an orthogonal matrix, chosen by the start and, at finite d, by the noise: each unit ends
as a mixture of the teachers.
"""

import matplotlib.pyplot as plt
import numpy as np

import sgdlimits as sl

problem = sl.presets.quadratic_network(width=2, teachers=2, lr=0.1)
start = sl.OrthogonalInit(spread=0.05).one(problem, seed=0)
limit = sl.simulate(problem, sl.ODE(), start, t_max=45)
chain = sl.simulate(problem, sl.Chain(d=2000), start, t_max=45, runs=8)
M = limit.M.values[0, -1]
print("M at the end of the ODE:", np.round(M, 3).tolist(), "and M^T M:", np.round(M.T @ M, 3).tolist())

plt.rcParams.update(sl.plot.PAPER)
figure, (left, right) = plt.subplots(1, 2, figsize=(8.4, 3.6), layout="constrained")
sl.plot.overlaps(chain, left, absolute=False, singles=32)
for entry in limit.M.values[0].reshape(limit.sizes["t"], -1).T:
    left.plot(limit.t, entry, color="grey", linewidth=0.9, zorder=4)
left.set_title("chain, $d = 2000$, and ODE (grey)")
sl.plot.risk({"exact chain": chain, "ODE": limit}, right)
plt.show()
