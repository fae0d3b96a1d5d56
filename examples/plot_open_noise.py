r"""
What label noise leaves of the risk
===================================

At the end of phase retrieval the excess risk is :math:`g\Delta` to first order, where :math:`\Delta` is the variance of the
label noise and :math:`g = \gamma/p` the learning rate over the number of units, for every network. Width and constraints
matter at second order: on the right all curves start at 1 and then separate, for weights on the sphere, free weights, and a
trained second layer.
"""

import matplotlib.pyplot as plt
import numpy as np

import sgdlimits as sl
from sgdlimits.papers.mediocrity import theory as mediocrity
from sgdlimits.papers.mediocrity.theory.asymptotic import free_end, trained_end

noise, g = 2.0, np.linspace(0.005, 0.1, 12)
plt.rcParams.update(sl.plot.PAPER)
figure, (left, right) = plt.subplots(1, 2, figsize=(7.8, 3.4), layout="constrained")
for lr in (0.03, 0.06, 0.1):
    levels = np.linspace(0, 9, 181)
    left.plot(levels, mediocrity.asymptotic_excess_risk(1, lr, levels), label=f"lr {lr:g}")
left.set(xlabel=r"noise $\Delta$", ylabel="excess risk at the end", title="one unit")
left.legend()
for p, dashes in ((2, "--"), (10, "-")):
    ends = {
        "sphere": mediocrity.asymptotic_excess_risk(p, g * p, noise),
        "free": free_end(p, g * p, noise).excess_risk,
        "trained": trained_end(p, g * p, noise).excess_risk,
    }
    for colour, (name, risk) in zip(("C0", "C1", "C2"), ends.items(), strict=True):
        right.plot(g, risk / (g * noise), dashes, color=colour, label=f"{name}, $p = {p}$")
right.set(xlabel=r"$g = \gamma/p$", ylabel=r"excess risk over $g\Delta$", title=r"$\Delta = 2$")
right.legend()
plt.show()
