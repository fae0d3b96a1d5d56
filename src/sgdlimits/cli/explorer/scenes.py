"""Scenes of the explorer's page: named settings with a sentence on what to look for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def make_scene(
    title: str, look: str, other: Mapping | None = None, view: Mapping | None = None, **setting: Any
) -> dict[str, Any]:
    """Return a dict for a scene of the explorer's page: a setting with a title and a sentence on what to look for.

    Parameters
    ----------
    title, look : the title, and the sentence on what to look for
    other : entries that differ in a second setting, shown beside the first; None for a single setting
    view : choices of the drawing, such as the quantity or a logarithmic axis
    **setting : entries of the first setting
    """
    return {"title": title, "look": look, "setting": setting, "other": other, "view": view or {}}


SCENES: dict[str, list[dict[str, Any]]] = {
    "phase_retrieval": [
        make_scene(
            "the golf course",
            "The risk stays flat while the overlap grows unseen; then every run falls, each at its own time.",
            parameters={"lr": 0.05}, d=3000, t_max=80,
        ),
        make_scene(
            "a million dimensions",
            "The same escape in 10^6 dimensions: later by the logarithm of d, and the spread of exit times stays.",
            parameters={"lr": 0.05}, d=10**6, t_max=120, runs=16,
        ),
        make_scene(
            "the rate that leaves first",
            "Eight units at lr 1.5 (B) leave long before one unit at 1/12 (A), and then rest at a higher risk.",
            parameters={"width": 1, "lr": 1 / 12}, other={"parameters": {"width": 8, "lr": 1.5}}, d=3000, t_max=60,
        ),
    ],
    "quadratic_network": [
        make_scene(
            "norm learning then plateau",
            "The norms settle at once, the risk rests on a plateau, and only then the directions are found.",
            parameters={"width": 2, "teachers": 1, "lr": 0.05}, d=3000, t_max=100, view={"right": "Q[0,0]"},
        ),
        make_scene(
            "three units for two teachers",
            "The overlaps split: the teachers' plane is found, and what is in it depends on the start.",
            parameters={"width": 3, "teachers": 2, "lr": 0.05}, d=3000, t_max=200,
        ),
    ],
    "committee": [
        make_scene(
            "the unspecialised plateau",
            "All units see the mean of the teachers first; the risk rests until they take one each.",
            parameters={"width": 2, "teachers": 2, "lr": 2.0}, d=1000, t_max=400, runs=32, threshold=0.99, view={"log": True},
        ),
        make_scene(
            "Muon leaves first",
            "SGD (A) against Muon (B) at the same learning rate: Muon's steps do not shrink with the gradient.",
            parameters={"width": 2, "teachers": 2, "lr": 0.5, "batch": 4}, other={"optimiser": "muon"}, d=1000, t_max=400,
            runs=16, threshold=0.97, view={"log": True},
        ),
        make_scene(
            "momentum is a larger step",
            "Heavy ball with beta 0.9 at lr 0.2 (B) follows plain SGD at lr 2 (A), ten times the rate.",
            parameters={"lr": 2.0},
            other={"parameters": {"lr": 0.2}, "optimiser": "heavy_ball", "optimiser_parameters": {"beta": 0.9}},
            d=1000, t_max=300, runs=16, threshold=0.99, view={"log": True},
        ),
    ],
    "single_index": [
        make_scene(
            "information exponent 2",
            "A plateau of order log d: the ODE leaves it from a random start.",
            parameters={"activation": "he2", "lr": 0.05}, d=3000, t_max=60,
        ),
        make_scene(
            "information exponent 3",
            "The signal of the start is of order 1/d: at the end of this time the runs are still on the plateau.",
            parameters={"activation": "he3", "lr": 0.01}, d=300, t_max=300, runs=32,
        ),
    ],
    "binary_mixture": [
        make_scene(
            "ring of wrong classifiers",
            "From many starts both units take the same class: the accuracy stays at 3/4, on a ring of fixed points.",
            parameters={"snr": 100.0, "ridge": 0.1}, d=1000, t_max=30, runs=32, view={"right": "accuracy"},
        ),
        make_scene(
            "noisy classes",
            "At a small signal-to-noise ratio the accuracy stops short of 1, near 0.9 or, on the ring, 0.7.",
            parameters={"snr": 2.0, "ridge": 0.05}, d=1000, t_max=30, runs=32, view={"right": "accuracy"},
        ),
    ],
    "xor_mixture": [
        make_scene(
            "few of the runs learn",
            "Four classes without noise need four units, one each; few runs find all four.",
            parameters={"snr": "inf", "ridge": 0.1}, d=500, t_max=30, runs=16, view={"right": "accuracy"},
        ),
        make_scene(
            "more units help",
            "With eight units instead of four more runs find all four classes.",
            parameters={"snr": "inf", "ridge": 0.05, "width": 4}, other={"parameters": {"width": 8}}, d=500, t_max=30, runs=16,
            view={"right": "accuracy"},
        ),
    ],
    "spiked_tensor": [
        make_scene(
            "just above the transition",
            "A spiked matrix at ratio 1.2: overlap and its opposite are both found, after a while at zero.",
            parameters={"order": 2, "snr": 1.2}, d=1500, t_max=12, runs=32,
        ),
        make_scene(
            "a tensor of order 3",
            "The start's signal is of order 1/d: the noise holds most runs at an overlap near zero.",
            parameters={"order": 3, "snr": 4.0, "lr": 0.3}, d=1000, t_max=10, runs=32,
        ),
    ],
}  # fmt: skip
"""Scenes of the explorer's page, by preset."""
