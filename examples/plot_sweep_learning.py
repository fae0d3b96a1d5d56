r"""
A sweep: which learning rates learn
===================================

The final risk of the ODE, in units of that at the start, over the learning rate and the variance :math:`\Delta` of the
label noise. The grid is coarse, and is refined where the risk changes most. One unit learns below :math:`2/(12+\Delta)`.
Three units (p = 3) leave the plateau up to a larger rate (dashed), but end at a small risk only up to
:math:`2p/(12+\Delta)`.
"""

from tempfile import TemporaryDirectory

import matplotlib.pyplot as plt
import numpy as np

import sgdlimits as sl
from sgdlimits.papers.mediocrity import theory as mediocrity

plt.rcParams.update(sl.plot.PAPER)
figure, axes = plt.subplots(1, 2, figsize=(9.2, 3.6), layout="constrained")
noise = np.linspace(0, 8, 50)
for ax, width in zip(axes, (1, 3), strict=True):
    over = sl.grid(lr=(width * np.linspace(0.06, 0.26, 6)).round(4), noise=[0, 4, 8])
    with TemporaryDirectory() as folder:
        ends = sl.sweep(
            "phase_retrieval", sl.ODE(rtol=1e-6), sl.RandomInit(1000), over=over, fixed={"width": width}, folder=folder,
            t_max=300 / width, keep="relative_risk", refine=sl.Refine("relative_risk", rounds=2, share=0.3),
        )  # fmt: skip
    usable = lambda lr, noise, width=width: lr - 2 * width / (12 + noise)
    sl.plot.phase_diagram(ends, "lr", "noise", "relative_risk", ax, theory=usable, label="risk at the end")
    if width > 1:
        ax.plot(mediocrity.max_lr(width, noise), noise, "w--", linewidth=1.6)
    ax.set(title=f"{width} unit{'s' * (width > 1)}; solid: $2p/(12+\\Delta)$")
plt.show()
