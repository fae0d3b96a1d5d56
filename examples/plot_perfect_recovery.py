r"""
Perfect recovery, to the last digits
====================================

Without label noise the risk of phase retrieval falls exponentially for ever. The chain keeps of Q only a triangular factor of
what lies outside the teacher's direction, and computes the risk from that factor: it goes on below :math:`10^{-25}`. From the
weights in :math:`R^d` the risk is a difference of overlaps that are close to 1, and stalls at their last digits.
"""

import matplotlib.pyplot as plt

import sgdlimits as sl

problem = sl.presets.phase_retrieval(lr=0.08)
start = sl.FixedInit(overlap=0.3)
datasets = {
    "SGD, risk from the overlaps": sl.simulate(problem, sl.SGD(d=200), start, t_max=400, runs=10),
    "exact chain, risk from the factor": sl.simulate(problem, sl.Chain(d=200), start, t_max=400, runs=10, seed=1),
}
print(f"Largest final risk of the chain: {float(datasets['exact chain, risk from the factor'].risk[:, -1].max()):.1e}")

plt.rcParams.update(sl.plot.PAPER)
figure, ax = plt.subplots(figsize=(5.6, 3.8), layout="constrained")
sl.plot.risk(datasets, ax, log=True)
ax.set(ylim=(1e-34, 10), title=r"Phase retrieval without noise, $d = 200$")
plt.show()
