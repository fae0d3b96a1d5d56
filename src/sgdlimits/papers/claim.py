"""A claim of a paper: what it says and where, and the computation that judges it.

A computation returns `compare(number, right, printed)`: the number by a route of its own, what the right formula says, and
for misprints what is printed. The verdict follows, and is compared with the one that is recorded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

SIGMAS = 4.5
"""Standard errors that a statistical comparison is allowed: one number fails by chance with 7e-6."""
EFFORTS = {"quick": 0.25, "default": 1.0, "full": 16.0}
"""How many runs statistical claims have, in units of their usual number."""


class Paper(NamedTuple):
    """A paper: its title, who wrote it and its number in the bibliography, and a word on its letters."""

    title: str
    authors: str
    number: int | None = None
    letters: str = ""


PAPERS = {
    "mediocrity": Paper(
        "Escaping mediocrity: how two-layer networks learn hard generalized linear models",
        "Arnaboldi, Krzakala, Loureiro and Stephan",
        1,
        r"The letters and equation numbers are the paper's: $\gamma$ is the learning rate, $\Delta$ the variance of the noise, "
        r"$\rho = |w_\star|^2/d$, $q = |w|^2/d$. The rows on Hessians take the data with identity covariance and "
        r"$|w_\star|^2 = \rho$.",
    ),
    "effective": Paper(
        "High-dimensional limit theorems for SGD: Effective dynamics and critical scaling",
        "Ben Arous, Gheissari and Jagannath",
        2,
        "The letters are the paper's.",
    ),
    "quadratic": Paper(
        "Escape dynamics and implicit bias of one-pass SGD in overparameterized quadratic networks",
        "Bocchi, Regimbeau, Lucibello, Saglietti and Cammarota",
        3,
        r"The letters are the paper's: $\eta$ is the learning rate, $\rho$ the overlaps with the teacher, $\alpha$ samples per "
        "dimension.",
    ),
    "preprint": Paper(
        "Escaping mediocrity: how two-layer networks learn hard generalized linear models with SGD",
        "The preprint of [1], and the questions that summaries of it leave open",
        4,
    ),
    "slides": Paper(
        "Dimension-free limits of SGD for two-layers neural networks (and some applications)", "Slides by Loureiro", 5
    ),
    "new_results": Paper("New results of this package", "Each with its proof, or measured"),
}
"""The papers by the names of the files that hold their claims."""


@dataclass(frozen=True)
class Effort:
    """How much statistical claims compute."""

    name: str = "default"

    def runs(self, usual: int, least: int = 64) -> int:
        return max(int(usual * EFFORTS[self.name]), min(usual, least))


@dataclass(frozen=True, repr=False)
class Found:
    """What a computation found: arrays of numbers, beside what the right formula and the printed one say.

    Parameters
    ----------
    number : by a route that is independent of the formulas
    right : what the right formula says; None where nothing is claimed
    printed : what the paper prints, where that is something else
    sigma : standard errors of the numbers, 0 where they are exact
    room : by how much a number may differ
    relation : "=", or "<" and ">" where the formula is a bound
    """

    number: np.ndarray
    right: np.ndarray | None
    printed: np.ndarray | None
    sigma: np.ndarray
    room: np.ndarray
    relation: str

    def excess(self, other: np.ndarray) -> np.ndarray:
        """By how much each number is beyond what a formula allows, its room included."""
        gap = self.number - other
        gap = {"=": np.abs(gap), "<": gap, ">": -gap}[self.relation]
        return np.where(np.isfinite(self.number), gap - self.room, np.inf)

    def agrees(self, other: np.ndarray) -> bool:
        return bool((self.excess(other) <= 0).all())

    def verdict(self, kind: str) -> str:
        """What the comparison says; `kind` is the word for a paper that is wrong."""
        if self.right is None:
            return "open"
        ours = self.agrees(self.right)
        if self.printed is None:
            return "holds" if ours else "disagreement"
        theirs = self.agrees(self.printed)
        if ours == theirs:
            return "open"
        return "holds" if theirs else kind if kind in ("misprint", "remark", "disagreement") else "misprint"

    @property
    def worst(self) -> dict[str, float]:
        """The entry that is farthest off, from what is printed if that differs: its number, formulas, error and room."""
        other = self.printed if self.printed is not None else self.right
        i = int(np.argmax(self.excess(other))) if other is not None else 0
        values = {"number": self.number, "right": self.right, "printed": self.printed, "sigma": self.sigma, "room": self.room}
        return {name: float(value[i]) for name, value in values.items() if value is not None}


def compare(
    number: Any, right: Any = None, printed: Any = None, *, rtol: float = 1e-9, atol: float = 0.0, sigma: Any = 0.0,
    relation: str = "=",
) -> Found:  # fmt: skip
    """A computation's result; numbers may differ by `SIGMAS` standard errors, a share of the largest right one, and `atol`.

    >>> compare([1.0, 2.0], [1.0, 2.0], printed=[1.0, 4.0]).verdict("misprint")
    'misprint'
    """
    numbers = np.atleast_1d(np.asarray(number, float)).ravel()
    flat = lambda values: None if values is None else np.broadcast_to(np.asarray(values, float), np.shape(number)).reshape(-1)
    ours = flat(right)
    errors = np.broadcast_to(np.asarray(sigma, float), np.shape(number)).reshape(-1)
    scale = 0.0 if ours is None else float(np.abs(ours).max())
    return Found(numbers, ours, flat(printed), errors, SIGMAS * errors + rtol * scale + atol, relation)


FOLDER = "sgdlimits.papers"
FILES = {
    "mediocrity.claims.process": "mediocrity",
    "mediocrity.claims.landscape": "mediocrity",
    "mediocrity.claims.noise": "mediocrity",
    "mediocrity.claims.times": "mediocrity",
    "effective.claims.tensors": "effective",
    "effective.claims.mixtures": "effective",
    "quadratic.claims.dynamics": "quadratic",
    "quadratic.claims.landscape": "quadratic",
    "mediocrity.claims.preprint": "preprint",
    "slides.claims.regimes": "slides",
    "slides.claims.mean_field": "slides",
    "new_results.claims.exits": "new_results",
    "new_results.claims.landscapes": "new_results",
}
"""The paper to which the claims of each file of the folder belong, in the order in which they are printed."""


@dataclass(frozen=True)
class Claim:
    """What a paper says and where.

    Parameters
    ----------
    name : of the paper's file and of the computation
    paper : a key of `PAPERS`
    where : section or equation
    title : in a few plain words
    says : what is said or printed, in Markdown
    compute : takes an `Effort`, returns `Found`
    kind : the verdict on record: "holds", "misprint" (of a formula), "remark" (the paper is right in its own convention or
        within its own scope), "disagreement" (on a result), or "open" (neither is right)
    right : what is right, where the paper is not
    tests : the tests that show it
    proof : of new results, a link to the page that has it, or "measured"
    """

    name: str
    paper: str
    where: str
    title: str
    says: str
    compute: Callable[[Effort], Found]
    kind: str = "holds"
    right: str = ""
    tests: str = ""
    proof: str = ""


CLAIMS: dict[str, Claim] = {}
"""All claims by name, in the order of the papers."""


def claim(where: str, title: str, says: str, **more: str) -> Callable[[Callable[[Effort], Found]], Callable[[Effort], Found]]:
    """Register a computation as the judge of a claim of the paper to which its file belongs.

    Where something else is right, the claim is a misprint unless it is said to be a remark or a disagreement.
    """
    more = {"kind": "misprint", **more} if "right" in more else more

    def register(compute: Callable[[Effort], Found]) -> Callable[[Effort], Found]:
        paper = FILES[compute.__module__.removeprefix(f"{FOLDER}.")]
        name = f"{paper}.{compute.__name__}"
        assert name not in CLAIMS, name
        CLAIMS[name] = Claim(name, paper, where, title, says, compute, **more)
        return compute

    return register
