"""
Perfect recovery, to the last digits
====================================

Without label noise the risk of phase retrieval falls exponentially for ever. Instead of the overlaps Q between units the
exact chain stores a triangular factor of the weights' component orthogonal to the teacher, and computes the risk from this
factor. The risk then falls below :math:`10^{-25}`. The risk of SGD is computed from its overlaps, numbers close to 1, and
stops at their last digits.
"""

import matplotlib.pyplot as plt
import numpy as np

import sgdlimits as sl

problem = sl.presets.phase_retrieval(lr=0.08)
start = sl.FixedInit(overlap=0.3)
direct = sl.simulate(problem, sl.SGD(d=200), start, t_max=110, runs=10)
chain = sl.simulate(problem, sl.Chain(d=200), start, t_max=210, runs=10, seed=1)
print(f"Largest risk among the chain's {chain.sizes['run']} runs at the end: {chain.risk.values[:, -1].max():.1e}")

plt.rcParams.update(sl.plot.PAPER)
figure, ax = plt.subplots(figsize=(5.6, 3.8), layout="constrained")
sl.plot.risk({"exact chain": chain, "SGD on the weights": direct}, ax, log=True)
ax.axhline(np.finfo(float).eps, color="grey", linewidth=0.8)
ax.annotate("last digit of an overlap close to 1", (210, 3e-16), ha="right", va="bottom", color="grey")
ax.set(title=r"Phase retrieval without noise, $d = 200$", xlim=(0, 210))
plt.show()
