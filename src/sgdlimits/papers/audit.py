"""Compute and judge all claims of the papers, and print or save the result."""

from __future__ import annotations

import csv
import io
import json
import os
import time
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

from sgdlimits.domain import checked
from sgdlimits.errors import BadInput, check_choice, shorten
from sgdlimits.files import write
from sgdlimits.papers.claim import CLAIMS, EFFORTS, PAPER_BY_MODULE, PAPERS, PAPERS_PACKAGE, Claim, Comparison, Effort
from sgdlimits.progress import bar
from sgdlimits.text import format_count, format_table

TABLE_COLUMNS = ("where", "claim", "number", "within", "paper", "right", "verdict")
"""Headings of the printed table of claims."""
FILE_ENDINGS = (".json", ".csv", ".md")
"""File formats of a saved audit."""


@dataclass(frozen=True)
class JudgedClaim:
    """Claim together with its comparison, its verdict, the CPU seconds it took, and the error if it failed."""

    claim: Claim
    verdict: str
    comparison: Comparison | None = None
    seconds: float = 0.0
    error: str = ""

    @property
    def has_recorded_verdict(self) -> bool:
        """Whether the computed verdict is the one on record for the claim."""
        return self.verdict == self.claim.kind

    def as_dict(self) -> dict[str, Any]:
        """Return the claim's name, worst compared values, relation, tolerance and verdict, as stored in JSON."""
        worst = self.comparison.worst if self.comparison else {}
        relation = self.comparison.relation if self.comparison else "="
        return {"name": self.claim.name, **worst, "relation": relation, "verdict": self.verdict, "error": self.error}

    def table_row(self) -> tuple[str, ...]:
        """Return the table cells of the claim: place, title, values, and verdict, with "!" if it is not the one on record."""
        return (
            self.claim.where,
            self.claim.title,
            *format_cells(self.as_dict()),
            self.verdict + ("" if self.has_recorded_verdict else " !"),
        )


def format_cells(numbers: dict[str, Any]) -> tuple[str, str, str, str]:
    """Format a claim's computed value, its interval or tolerance, the paper's value, and the right value if it differs."""
    if "number" not in numbers:
        return numbers["error"][:40] or "not computed", "", "", ""
    show = lambda key: f"{0.0 if abs(numbers[key]) <= 1e-12 else numbers[key]:.4g}" if key in numbers else ""
    bound = numbers["relation"] if numbers["relation"] != "=" else ""
    tolerance, sigma, right = numbers["tolerance"], numbers["sigma"], numbers.get("right")
    # statistical numbers show an interval, exact ones a tolerance
    low, high = numbers["number"] - tolerance, numbers["number"] + tolerance
    within = f"{low:.4g} to {high:.4g}" if sigma else "" if right is None or bound else f"± {tolerance:.1g}"
    theirs = bound + show("printed" if "printed" in numbers else "right")
    return show("number"), within, theirs, bound + show("right") if "printed" in numbers else ""


@dataclass(frozen=True, repr=False)
class Audit:
    """Judged claims of an audit; prints as one table per paper.

    Parameters
    ----------
    judged : the claims that were computed
    effort : "quick", "default" or "full"
    chosen : number of claims selected
    """

    judged: tuple[JudgedClaim, ...]
    effort: str = "default"
    chosen: int = 0

    @property
    def unexpected(self) -> tuple[JudgedClaim, ...]:
        """Judged claims whose verdict is not the one on record."""
        return tuple(each for each in self.judged if not each.has_recorded_verdict)

    @property
    def complete(self) -> bool:
        """Whether every selected claim was computed."""
        return len(self.judged) == self.chosen

    def __repr__(self) -> str:
        """Return the printed audit: one table of claims per paper, followed by the summary."""
        text = ""
        for key, paper in PAPERS.items():
            rows = [strip_markup(each.table_row()) for each in self.judged if each.claim.paper == key]
            if rows:
                text += f"{paper.title}\n{format_table([TABLE_COLUMNS, *rows], '<<>>>><', indent='  ')}\n\n"
        return text + self.summary()

    def summary(self) -> str:
        """Return the counts of the verdicts, and the claims whose verdict is not the one on record, as text."""
        verdicts = Counter(each.verdict for each in self.judged)
        words = ", ".join(f"{number} {verdict}" for verdict, number in verdicts.most_common())
        seconds = sum(each.seconds for each in self.judged)
        text = f"{format_count(len(self.judged), 'claim')} at {self.effort} effort: {words}; {seconds:.0f} CPU seconds."
        if not self.complete:
            text += f" {self.chosen - len(self.judged)} more were not computed."
        for each in self.unexpected:
            text += f"\n! {each.claim.name} is recorded as {each.claim.kind}; found {each.verdict}. {each.error}".rstrip()
        return text

    def save(self, path: str | os.PathLike) -> Path:
        """Write the audit to a .json, .csv or .md file atomically."""
        return write(check_format(path), self.text(Path(path).suffix).encode())

    def text(self, ending: str) -> str:
        """Format the audit as the content of a ".json", ".csv" or ".md" file."""
        if ending == ".json":
            about = {"effort": self.effort, "claims": [each.as_dict() for each in self.judged]}
            return json.dumps(about, indent=1, ensure_ascii=False) + "\n"
        head, rows = ("paper", *TABLE_COLUMNS), [(each.claim.paper, *each.table_row()) for each in self.judged]
        if ending == ".md":
            return format_markdown(head, rows) + f"\n{self.summary()}\n"
        out = io.StringIO()
        csv.writer(out, lineterminator="\n").writerows([head, *rows])
        return out.getvalue()


def strip_markup(row: tuple[str, ...]) -> tuple[str, ...]:
    """Strip LaTeX markup from the first cell of a table row, for the terminal."""
    return (row[0].replace("$", "").replace("\\", "")[:32], *row[1:])


def format_markdown(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    """Format a heading and rows of cells as a table in Markdown."""
    lines = [" | ".join(cell.replace("|", r"\|") if "$" not in cell else cell for cell in row) for row in (head, *rows)]
    first, *rest = [f"| {line} |\n" for line in lines]
    return "".join([first, f"|{'---|' * len(head)}\n", *rest])


def check_format(path: str | os.PathLike) -> str | os.PathLike:
    """Return the path of a saved audit, or raise `BadInput` unless it ends in .json, .csv or .md."""
    if Path(path).suffix not in FILE_ENDINGS:
        raise BadInput(
            f"out must end in {', '.join(FILE_ENDINGS[:-1])} or {FILE_ENDINGS[-1]}; got {shorten(str(path))}. "
            "Use one of these endings."
        )
    return path


def check_word(argument: str, value: Any) -> str:
    """Return the value of an argument, or raise `BadInput` unless it is a string that is not blank."""
    if not isinstance(value, str) or not value.strip():
        raise BadInput(f"{argument} must be a word; got {shorten(value)}. Give part of a claim's name or title.")
    return value


class AuditInterrupted(KeyboardInterrupt):
    """Raised on Ctrl-C during `audit`; the attribute `found` holds the audit of the claims computed so far."""

    def __init__(self, found: Audit) -> None:
        super().__init__("interrupted; the claims computed so far are in the attribute `found` of this exception")
        self.found = found


def find_claims(paper: str | None = None, only: str | None = None) -> list[Claim]:
    """Return the claims, of one paper or of all, whose name, place or title contains the string `only`."""
    for file in PAPER_BY_MODULE:
        # importing a module registers its claims
        import_module(f"{PAPERS_PACKAGE}.{file}")
    text = lambda claim: f"{claim.name} {claim.where} {claim.title}".lower()
    papers, files = list(PAPERS), [f"{PAPERS_PACKAGE}.{file}" for file in PAPER_BY_MODULE]
    file_of = lambda each: files.index(module) if (module := each.compute.__module__) in files else len(files)
    # by paper, module and position in the module
    place = lambda each: (papers.index(each.paper), file_of(each), each.compute.__code__.co_firstlineno)
    chosen = [
        each
        for each in sorted(CLAIMS.values(), key=place)
        if paper in (None, each.paper) and (only or "").lower() in text(each)
    ]
    if not chosen:
        raise BadInput(f"only must be part of a claim's name or title; got {shorten(only)}. Leave it out to see all claims.")
    return chosen


@checked
def audit(
    effort: Annotated[str, partial(check_choice, known=EFFORTS)] = "default",
    paper: Annotated[str, partial(check_choice, known=PAPERS)] | None = None,
    only: Annotated[str, check_word] | None = None,
    progress: bool = True,
) -> Audit:
    """Compute and judge every claim of the papers and of this package's own results.

    A claim holds if an independent computation agrees with its formula: quadrature, sampling, the exact chain, or SGD on
    weights. For a misprint the printed and the corrected formula are both compared, and only the corrected one agrees.
    Statistical comparisons allow 4.5 standard errors, so one number fails by chance with probability 7e-6. Seeds are fixed.

    Parameters
    ----------
    effort : "quick", "default" (about two minutes on one core) or "full": statistical claims use 1/4, 1 or 16 times the
        usual number of runs
    paper : "mediocrity", "effective", "quadratic", "preprint", "slides" or "new_results"; default all
    only : select claims whose name, place or title contains this word
    progress : whether to show a progress bar

    Returns
    -------
    `Audit`: prints as a table per paper; `save` writes it to a file

    Examples
    --------

    >>> import sgdlimits as sl
    >>> found = sl.audit(paper="mediocrity", only="(63)", progress=False)
    >>> print(found.summary())
    1 claim at default effort: 1 misprint; 0 CPU seconds.

    See Also
    --------
    check : check a dataset against the form that `simulate` writes
    """
    # a list outside of the loop survives Ctrl-C
    chosen, judged = find_claims(paper, only), list[JudgedClaim]()
    try:
        with bar(chosen, desc="audit", unit=" claims", disable=not progress) as steps:
            for each in steps:
                judged.append(judge(each, Effort(effort)))
    except KeyboardInterrupt:
        raise AuditInterrupted(Audit(tuple(judged), effort, len(chosen))) from None
    return Audit(tuple(judged), effort, len(chosen))


def judge(claim: Claim, effort: Effort) -> JudgedClaim:
    """Compute one claim and return it with its verdict; a computation that fails leaves the claim open, with the reason."""
    # CPU time: claims may run beside other work
    begin = time.process_time()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            comparison = claim.compute(effort)
    except Exception as reason:
        return JudgedClaim(claim, "open", None, time.process_time() - begin, f"{type(reason).__name__}: {reason}")
    return JudgedClaim(claim, comparison.verdict(claim.kind), comparison, time.process_time() - begin)
