r"""
A sweep: regimes over exponents
===============================

With :math:`p = d^\kappa` units and the learning rate :math:`d^{-\delta}` only :math:`\kappa+\delta` matters (Veiga et al.).
Here a function builds the problem from the two exponents, each point has its own end time, five units of the paper's time
:math:`\gamma t/p`, and the exact chain runs at :math:`d = 100`. Where :math:`\kappa+\delta > 0`, above the line, the risk
falls. Below the line the noise of SGD dominates, and for sums below :math:`-1/2` there is no limit.
"""

from tempfile import TemporaryDirectory

import matplotlib.pyplot as plt
import numpy as np

import sgdlimits as sl

d = 100


def build(kappa, delta):
    return sl.presets.committee(width=round(d**kappa), teachers=1, lr=d**-delta)


plt.rcParams.update(sl.plot.PAPER)
exponents = [(kappa, delta) for kappa in (0, 0.15, 0.3, 0.45) for delta in np.linspace(-1, 0.5, 13).round(3)]
points = [{"kappa": k, "delta": a, "t_max": max(5 * d ** (k + a), 2 / d)} for k, a in exponents]
with TemporaryDirectory() as folder:
    ends = sl.sweep(build, sl.Chain(d), sl.FixedInit(0.1), over=points, folder=folder, runs=32, keep="final_risk")
ax = sl.plot.phase_diagram(
    ends, "kappa", "delta", "final_risk", theory=np.add, levels=[-0.5, 0], log=True, label="risk at the end"
)
ax.figure.set_size_inches(5.2, 3.8)
plt.show()
