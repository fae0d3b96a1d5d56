"""
Forgetting is largest at intermediate similarity
================================================

A network of two units learns a teacher, and then another one with a second head. What it forgets of the first task depends on
the similarity of the teachers: nothing is lost where they are orthogonal, and hardly anything where they are the same. Replay
of a tenth of the samples (dashed) keeps the first task.
"""

import matplotlib.pyplot as plt
import numpy as np

import sgdlimits as sl

switch, start = 100.0, sl.RandomInit(d=1000)
protocols = {"one after the other": [0.0, 1.0], "with replay": [0.1, 0.9]}
plt.rcParams.update(sl.plot.PAPER)
figure, (left, right) = plt.subplots(1, 2, figsize=(7, 3), layout="constrained")
similarities = np.array([0.0, 0.2, 0.4, 0.6, 0.8, 1.0])
for (name, after), style in zip(protocols.items(), ("-", "--"), strict=True):
    weights, forgotten = sl.Steps([switch], [[1.0, 0.0], after]), []
    for similarity in similarities:
        problem = sl.presets.two_tasks(similarity=similarity, weights=weights)
        runs = sl.simulate(problem, sl.ODE(), start, t_max=200, save=101, progress=False)
        forgotten.append(float(sl.forgetting(runs)[0, -1]))
        if similarity == 0.4:
            for task, color in enumerate(("tab:blue", "tab:orange")):
                risk = runs.task_risk[0].isel(task=task)
                left.semilogy(runs.t, risk, style, color=color, label=f"task {task + 1}, {name}")
    right.plot(similarities, forgotten, f"o{style}", label=name)
left.set(xlabel="$t$", ylabel="risk at similarity 0.4")
right.set(xlabel="similarity", ylabel="forgetting")
left.legend(fontsize=6)
right.legend(fontsize=7)
plt.show()
