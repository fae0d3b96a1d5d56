"""Claims of papers: the statement and its place, with the computation that tests it.

A computation returns `compare(number, right, printed)`: a number obtained independently of the formula, the value of the right
formula, and for misprints the value of the printed one. The comparison gives a verdict, which the audit checks against the one
on record.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

MAX_STANDARD_ERRORS = 4.5
"""Number of standard errors allowed in a statistical comparison; one value fails by chance with probability 7e-6."""
EFFORTS = {"quick": 0.25, "default": 1.0, "full": 16.0}
"""Factors of the number of runs of statistical claims, by effort."""


class Paper(NamedTuple):
    """Title and authors of a paper, its number in the bibliography, and a remark on its notation."""

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
"""Dictionary from folder names to papers, whose claims are in these folders."""


@dataclass(frozen=True)
class Effort:
    """Effort of an audit, "quick", "default" or "full", which scales the number of runs of statistical claims."""

    name: str = "default"

    def runs(self, usual: int, least: int = 64) -> int:
        """Return the number of runs at this effort, given the `usual` number and the lower bound `least`."""
        return max(int(usual * EFFORTS[self.name]), min(usual, least))


@dataclass(frozen=True, repr=False)
class Comparison:
    """Independently computed values of a claim, with the values of the formula that the paper prints and of the right formula.

    Parameters
    ----------
    number : values computed independently of the formulas
    right : values of the right formula; None if the paper claims nothing
    printed : values of the printed formula, if it differs
    sigma : standard errors of `number`, 0 for exact values
    tolerance : largest difference with which values agree
    relation : "=", or "<" and ">" if the formula is a bound
    """

    number: np.ndarray
    right: np.ndarray | None
    printed: np.ndarray | None
    sigma: np.ndarray
    tolerance: np.ndarray
    relation: str

    def excess(self, other: np.ndarray) -> np.ndarray:
        """Return the distance of each computed value from a formula's value `other`, less the tolerance.

        The result is at most 0 where the two values agree.
        """
        gap = self.number - other
        gap = {"=": np.abs(gap), "<": gap, ">": -gap}[self.relation]
        # NaN agrees with nothing
        return np.where(np.isfinite(self.number), gap - self.tolerance, np.inf)

    def agrees(self, other: np.ndarray) -> bool:
        """Return whether all computed values agree with a formula's values `other` within the tolerance."""
        return bool((self.excess(other) <= 0).all())

    def verdict(self, kind: str) -> str:
        """Return the verdict of the comparison, such as "holds" or "open".

        Here `kind` is the verdict to return, such as "misprint", if only the printed formula is wrong.
        """
        if self.right is None:
            return "open"
        right_values = self.agrees(self.right)
        if self.printed is None:
            return "holds" if right_values else "disagreement"
        theirs = self.agrees(self.printed)
        # neither is right, or the tolerance cannot tell them apart
        if right_values == theirs:
            return "open"
        return "holds" if theirs else kind if kind in ("misprint", "remark", "disagreement") else "misprint"

    @property
    def worst(self) -> dict[str, float]:
        """Return the compared values by name, at the entry that is farthest from the formula that the paper prints.

        If the printed formula is not given, the right one takes its place.
        """
        other = self.printed if self.printed is not None else self.right
        i = int(np.argmax(self.excess(other))) if other is not None else 0
        values = {
            "number": self.number,
            "right": self.right,
            "printed": self.printed,
            "sigma": self.sigma,
            "tolerance": self.tolerance,
        }
        return {name: float(value[i]) for name, value in values.items() if value is not None}


def compare(
    number: Any, right: Any = None, printed: Any = None, *, rtol: float = 1e-9, atol: float = 0.0, sigma: Any = 0.0,
    relation: str = "=",
) -> Comparison:  # fmt: skip
    """Build a `Comparison` of computed values with the right formula and, if it differs, the formula that the paper prints.

    Here `number` has the computed values, and `sigma` their standard errors.

    Values agree within `MAX_STANDARD_ERRORS` standard errors plus a relative and an absolute tolerance.

    The relative tolerance `rtol` refers to the largest value of the right formula. `relation` is "=", or "<" or ">" for bounds.

    >>> compare([1.0, 2.0], [1.0, 2.0], printed=[1.0, 4.0]).verdict("misprint")
    'misprint'
    """
    numbers = np.atleast_1d(np.asarray(number, float)).ravel()
    flatten_values = lambda values: (
        None if values is None else np.broadcast_to(np.asarray(values, float), np.shape(number)).reshape(-1)
    )
    right_values = flatten_values(right)
    errors = np.broadcast_to(np.asarray(sigma, float), np.shape(number)).reshape(-1)
    scale = 0.0 if right_values is None else float(np.abs(right_values).max())
    return Comparison(
        numbers, right_values, flatten_values(printed), errors, MAX_STANDARD_ERRORS * errors + rtol * scale + atol, relation
    )


# modules are named relative to this package
PAPERS_PACKAGE = "sgdlimits.papers"
PAPER_BY_MODULE = {
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
    "new_results.claims.dynamics": "new_results",
}
"""Name of the paper whose claims a module has, by module, in printing order."""


@dataclass(frozen=True)
class Claim:
    """Statement of a paper, with its place and the computation that tests it.

    Parameters
    ----------
    name : name of the paper, a dot, and name of the computation without `compare_`
    paper : a key of `PAPERS`
    where : section or equation of the paper
    title : subject of the claim in a few words
    says : the statement as printed, in Markdown
    compute : function of an `Effort` that returns a `Comparison`
    kind : the verdict on record: "holds", "misprint" (of a formula), "remark" (the paper is right in its own convention or
        within its own scope), "disagreement" (on a result), or "open" (neither is right)
    right : the right statement, where the paper's is wrong
    tests : names of tests that show the right statement
    proof : for new results, a link to the page with the proof, or "measured"
    """

    name: str
    paper: str
    where: str
    title: str
    says: str
    compute: Callable[[Effort], Comparison]
    kind: str = "holds"
    right: str = ""
    tests: str = ""
    proof: str = ""


CLAIMS: dict[str, Claim] = {}
"""Dictionary of all registered claims by name."""


def claim(
    where: str, title: str, says: str, **more: str
) -> Callable[[Callable[[Effort], Comparison]], Callable[[Effort], Comparison]]:
    """Register the decorated function as the computation that tests a claim of its module's paper.

    The claim has the name of the function without the prefix `compare_`. If `right` is given, the claim is recorded as a
    misprint unless `kind` says otherwise.
    """
    # an explicit kind wins
    more = {"kind": "misprint", **more} if "right" in more else more

    def register(compute: Callable[[Effort], Comparison]) -> Callable[[Effort], Comparison]:
        """Register a computation as a claim of its module's paper, and return the computation unchanged."""
        paper = PAPER_BY_MODULE[compute.__module__.removeprefix(f"{PAPERS_PACKAGE}.")]
        name = f"{paper}.{compute.__name__.removeprefix('compare_')}"
        # a module imported twice, or two computations of one name
        assert name not in CLAIMS, name
        CLAIMS[name] = Claim(name, paper, where, title, says, compute, **more)
        return compute

    return register
