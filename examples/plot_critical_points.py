r"""
Every way down leads to the solution
====================================

Three students learn two teachers. The population risk has eight families of critical points: s directions of the
teachers' span are learnt, and r orthogonal ones are mistaken for signal. Only the solution (2, 0) has no negative
direction, so there are no other minima. On the plateau (0, 3), where learning waits, six directions lead down in any
dimension d, and nearly all others are null.
"""

import matplotlib.pyplot as plt

import sgdlimits as sl

problem = sl.presets.quadratic_network(width=3, teachers=2)
families = sl.theory.quadratic.critical_points(problem)
print(families)
print(families.family(0, 3).spectrum(d=1000))

plt.rcParams.update(sl.plot.PAPER)
figure, axes = plt.subplots(1, 2, figsize=(8.4, 3.8), layout="constrained", sharey=True)
for d, colour, size in ((10, "#56B4E9", 9), (100, "#0072B2", 6.5), (1000, "#000000", 4)):
    risks = [family.risk for family in families]
    axes[0].plot([family.index(d) for family in families], risks, "o", color=colour, markersize=size, label=f"$d = {d}$")
    axes[1].plot([sum(family.null(d)) for family in families], risks, "o", color=colour, markersize=size)
for family in families:
    text, place, shift = f"({family.s}, {family.r})", (family.index(1000), family.risk), -13 if family.kind == "mixed" else 7
    axes[0].annotate(text, place, xytext=(0, shift), textcoords="offset points", fontsize=7, ha="center")
for ax, name in zip(axes, ("negative", "null"), strict=True):
    ax.set(xlabel=f"{name} directions", xscale="symlog", xlim=(-0.4, 1.2e4), ylim=(-0.1, 2.2))
axes[0].set_ylabel("risk")
axes[0].set_title("(s, r) and the number of ways down")
axes[1].set_title("number of directions flat to second order")
axes[1].legend(*axes[0].get_legend_handles_labels(), loc="lower left")
plt.show()
