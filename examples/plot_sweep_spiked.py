r"""
A sweep: recovery of a spiked matrix
====================================

The overlap that SGD reaches with the direction of a spiked matrix, over the signal-to-noise ratio :math:`\lambda` and the
dimension, by the exact chain. The transition at :math:`\lambda = 1` (white) becomes sharp as d grows: below it the overlap
is that of the start, of order :math:`d^{-1/2}`, and above it :math:`\sqrt{\lambda-1}`.
"""

from tempfile import TemporaryDirectory

import matplotlib.pyplot as plt
import numpy as np

import sgdlimits as sl

plt.rcParams.update(sl.plot.PAPER)
over = sl.grid(snr=np.linspace(0.5, 1.6, 12).round(3), d=[50, 150, 500, 1500, 5000])
with TemporaryDirectory() as folder:
    found = sl.sweep(
        "spiked_tensor", "chain", "random", over=over, fixed={"order": 2}, folder=folder, runs=16, t_max=12, keep="overlap"
    )
ax = sl.plot.phase_diagram(found, "snr", "d", "overlap", theory=lambda snr, d: snr - 1, label="mean overlap $|m|$")
ax.collections[0].set_cmap("cividis")
ax.figure.set_size_inches(5.2, 3.8)
plt.show()
