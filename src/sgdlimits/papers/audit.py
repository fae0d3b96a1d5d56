"""The audit: every claim is computed and judged; what was found prints itself and becomes a file."""

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
from typing import Any

from sgdlimits.domain import checked, flag
from sgdlimits.errors import BadInput, check_choice, in_short
from sgdlimits.files import write
from sgdlimits.papers.claim import CLAIMS, EFFORTS, FILES, FOLDER, PAPERS, Claim, Effort, Found
from sgdlimits.progress import bar
from sgdlimits.text import count, table

COLUMNS = ("where", "claim", "number", "within", "paper", "right", "verdict")
FORMATS = (".json", ".csv", ".md")


@dataclass(frozen=True)
class Judged:
    """A claim with what its computation found, the verdict, the CPU seconds it took, and the error if it failed."""

    claim: Claim
    verdict: str
    found: Found | None = None
    seconds: float = 0.0
    error: str = ""

    @property
    def as_recorded(self) -> bool:
        return self.verdict == self.claim.kind

    def numbers(self) -> dict[str, Any]:
        """What is kept of it: the worst entry of the comparison, its interval or tolerance, and the verdict."""
        worst = self.found.worst if self.found else {}
        relation = self.found.relation if self.found else "="
        return {"name": self.claim.name, **worst, "relation": relation, "verdict": self.verdict, "error": self.error}

    def row(self) -> tuple[str, ...]:
        return (self.claim.where, self.claim.title, *cells(self.numbers()), self.verdict + ("" if self.as_recorded else " !"))


def cells(numbers: dict[str, Any]) -> tuple[str, str, str, str]:
    """Number, interval or tolerance, what the paper says, and what is right where that differs, as text."""
    if "number" not in numbers:
        return numbers["error"][:40] or "not computed", "", "", ""
    show = lambda key: f"{0.0 if abs(numbers[key]) <= 1e-12 else numbers[key]:.4g}" if key in numbers else ""
    bound = numbers["relation"] if numbers["relation"] != "=" else ""
    room, sigma, right = numbers["room"], numbers["sigma"], numbers.get("right")
    low, high = numbers["number"] - room, numbers["number"] + room
    within = f"{low:.4g} to {high:.4g}" if sigma else "" if right is None or bound else f"± {room:.1g}"
    theirs = bound + show("printed" if "printed" in numbers else "right")
    return show("number"), within, theirs, bound + show("right") if "printed" in numbers else ""


@dataclass(frozen=True, repr=False)
class Audit:
    """What an audit found; printed, a table for each paper.

    Parameters
    ----------
    judged : one for each claim that was computed
    effort : "quick", "default" or "full"
    chosen : how many claims were asked for
    """

    judged: tuple[Judged, ...]
    effort: str = "default"
    chosen: int = 0

    @property
    def unexpected(self) -> tuple[Judged, ...]:
        """Claims whose verdict is not the one on record."""
        return tuple(each for each in self.judged if not each.as_recorded)

    @property
    def complete(self) -> bool:
        """Whether every claim that was asked for was computed."""
        return len(self.judged) == self.chosen

    def __repr__(self) -> str:
        text = ""
        for key, paper in PAPERS.items():
            rows = [plain(each.row()) for each in self.judged if each.claim.paper == key]
            if rows:
                text += f"{paper.title}\n{table([COLUMNS, *rows], '<<>>>><', indent='  ')}\n\n"
        return text + self.summary()

    def summary(self) -> str:
        """How many claims have which verdict, and which are not as recorded."""
        verdicts = Counter(each.verdict for each in self.judged)
        words = ", ".join(f"{number} {verdict}" for verdict, number in verdicts.most_common())
        seconds = sum(each.seconds for each in self.judged)
        text = f"{count(len(self.judged), 'claim')} at {self.effort} effort: {words}; {seconds:.0f} CPU seconds."
        if not self.complete:
            text += f" {self.chosen - len(self.judged)} more were not computed."
        for each in self.unexpected:
            text += f"\n! {each.claim.name} is recorded as {each.claim.kind}; found {each.verdict}. {each.error}".rstrip()
        return text

    def save(self, path: str | os.PathLike) -> Path:
        """Write the table to a file, whole or not at all: .json, .csv or .md by its ending."""
        return write(check_format(path), self.text(Path(path).suffix).encode())

    def text(self, ending: str) -> str:
        """The table in one of the formats of files."""
        if ending == ".json":
            about = {"effort": self.effort, "claims": [each.numbers() for each in self.judged]}
            return json.dumps(about, indent=1, ensure_ascii=False) + "\n"
        head, rows = ("paper", *COLUMNS), [(each.claim.paper, *each.row()) for each in self.judged]
        if ending == ".md":
            return markdown(head, rows) + f"\n{self.summary()}\n"
        out = io.StringIO()
        csv.writer(out, lineterminator="\n").writerows([head, *rows])
        return out.getvalue()


def plain(row: tuple[str, ...]) -> tuple[str, ...]:
    """A row for the terminal, without the signs of LaTeX."""
    return (row[0].replace("$", "").replace("\\", "")[:32], *row[1:])


def markdown(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    """A table in Markdown."""
    lines = [" | ".join(cell.replace("|", r"\|") if "$" not in cell else cell for cell in row) for row in (head, *rows)]
    first, *rest = [f"| {line} |\n" for line in lines]
    return "".join([first, f"|{'---|' * len(head)}\n", *rest])


def check_format(path: str | os.PathLike) -> str | os.PathLike:
    """The path, or `BadInput` where its ending is that of no format."""
    if Path(path).suffix not in FORMATS:
        raise BadInput(
            f"out must end in {', '.join(FORMATS[:-1])} or {FORMATS[-1]}; got {in_short(str(path))}. Give such a name."
        )
    return path


def word(argument: str, value: Any) -> str:
    """A check that a value is text with letters."""
    if not isinstance(value, str) or not value.strip():
        raise BadInput(f"{argument} must be a word; got {in_short(value)}. Give a part of a claim's name or title.")
    return value


class AuditInterrupted(KeyboardInterrupt):
    """Ctrl-C during `audit`. `found` is the audit of what had been computed."""

    def __init__(self, found: Audit) -> None:
        super().__init__("interrupted; what was found is in the attribute `found` of this exception")
        self.found = found


def claims(paper: str | None = None, only: str | None = None) -> list[Claim]:
    """The claims of a paper, or all, whose name, place or title contains a word."""
    for file in FILES:
        import_module(f"{FOLDER}.{file}")
    text = lambda claim: f"{claim.name} {claim.where} {claim.title}".lower()
    papers, files = list(PAPERS), [f"{FOLDER}.{file}" for file in FILES]
    file_of = lambda each: files.index(module) if (module := each.compute.__module__) in files else len(files)
    place = lambda each: (papers.index(each.paper), file_of(each), each.compute.__code__.co_firstlineno)
    chosen = [
        each
        for each in sorted(CLAIMS.values(), key=place)
        if paper in (None, each.paper) and (only or "").lower() in text(each)
    ]
    if not chosen:
        raise BadInput(f"only must be a part of a claim's name or title; got {in_short(only)}. Leave it out to see all.")
    return chosen


@checked(effort=partial(check_choice, known=EFFORTS), paper=partial(check_choice, known=PAPERS), only=word, progress=flag)
def audit(effort: str = "default", paper: str | None = None, only: str | None = None, progress: bool = True) -> Audit:
    """Compute every claim of the papers, and what this package adds to them, and judge each.

    A claim holds where a computation that does not use its formula agrees with it: quadrature, sampling, the exact chain, or
    SGD on weights. A misprint is shown by both formulas, of which only the corrected one agrees. Statistical comparisons are
    allowed 4.5 standard errors, so that one number is off by chance with probability 7e-6; seeds are fixed.

    Parameters
    ----------
    effort : "quick", "default" (about two minutes of one core) or "full": statistical claims have 1/4, 1 and 16 times
        their usual runs
    paper : "mediocrity", "effective", "quadratic", "preprint", "slides" or "new_results"; all by default
    only : claims whose name, place or title contains this word
    progress : whether to show a bar

    >>> import sgdlimits as sl
    >>> found = sl.audit(paper="mediocrity", only="(63)", progress=False)
    >>> print(found.summary())
    1 claim at default effort: 1 misprint; 0 CPU seconds.

    See Also
    --------
    check : whether a dataset is as `simulate` makes them
    """
    chosen, judged = claims(paper, only), list[Judged]()
    try:
        with bar(chosen, desc="audit", unit=" claims", disable=not progress) as steps:
            for each in steps:
                judged.append(judge(each, Effort(effort)))
    except KeyboardInterrupt:
        raise AuditInterrupted(Audit(tuple(judged), effort, len(chosen))) from None
    return Audit(tuple(judged), effort, len(chosen))


def judge(claim: Claim, effort: Effort) -> Judged:
    """Compute one claim; what cannot be computed is open, with the reason."""
    begin = time.process_time()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = claim.compute(effort)
    except Exception as reason:
        return Judged(claim, "open", None, time.process_time() - begin, f"{type(reason).__name__}: {reason}")
    return Judged(claim, found.verdict(claim.kind), found, time.process_time() - begin)
