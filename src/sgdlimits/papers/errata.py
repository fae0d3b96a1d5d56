"""Pages generated from the audit: errata, remarks and disagreements, and the table of all claims."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Any

from sgdlimits.papers.audit import find_claims, format_cells, format_markdown
from sgdlimits.papers.claim import PAPERS, Claim

ERRATA_HEAD = """# Misprints in the papers, remarks, and disagreements

Each entry was found by an independent computation: Isserlis' theorem worked out symbolically, diagonalisation, or Monte Carlo.
A formula enters the package only with a test that shows it right. The last column names this test and the corresponding claim
of the [audit](audit.md): `sgdlimits check --only NAME` computes the claim and shows what is printed, what is right, and the
number. This page is written by `benchmarks/audit.py` from these claims.
"""
REMARKS_HEAD = """## Remarks and conventions

The entries below are not misprints: what is printed is right in the paper's own convention, or as far as it goes. The table
says what to keep in mind when comparing it with this package.
"""
DISAGREEMENTS_HEAD = """## Disagreements of result

The entries below are not misprints: here the computation of this package gives a result that differs from the paper's.
"""
# markers of the generated part of docs/audit.md
BEGIN_MARKER, END_MARKER = "<!-- from here on written by benchmarks/audit.py -->\n", "<!-- up to here -->\n"


def build_errata() -> str:
    """Build the page of misprints, remarks and disagreements in Markdown."""
    parts, every = [ERRATA_HEAD], find_claims()
    for key, paper in PAPERS.items():
        rows = [
            (each.where, each.says, each.right, _format_evidence(each))
            for each in every
            if (each.paper, each.kind) == (key, "misprint")
        ]
        if rows:
            about = f"{paper.authors} ([{paper.number}] in the [bibliography](bibliography.md)). {paper.letters}".strip()
            about = "\n".join(textwrap.wrap(about, 126, break_long_words=False, break_on_hyphens=False))
            parts.append(
                f"## {paper.title}\n\n{about}\n\n{format_markdown(('where', 'printed', 'right', 'test and claim'), rows)}"
            )
    for kind, head in (("remark", REMARKS_HEAD), ("disagreement", DISAGREEMENTS_HEAD)):
        rows = [
            (f"[{PAPERS[each.paper].number}], {each.where}", each.says, each.right, _format_evidence(each))
            for each in every
            if each.kind == kind
        ]
        parts.append(f"{head}\n{format_markdown(('where', 'the paper', 'here', 'test and claim'), rows)}")
    return "\n".join(parts)


def _format_evidence(claim: Claim) -> str:
    """Format the tests and the claim that show an entry of the errata."""
    return "; ".join(part for part in (claim.tests, f"`{claim.name}`") if part)


def build_tables(stored: dict[str, Any]) -> str:
    """Build the tables of claims of a stored audit in Markdown, one per paper."""
    numbers = {each["name"]: each for each in stored["claims"]}
    parts = []
    for key, paper in PAPERS.items():
        new, rows = key == "new_results", []
        for each in find_claims(key):
            found = numbers[each.name]
            says = f"{each.title}: {each.says}" if each.kind in ("holds", "open") else each.title
            number, within, theirs, ours = format_cells(found)
            last = (each.proof,) if new else (ours,)
            rows.append((each.where, says, number, within, theirs, *last, found["verdict"]))
        head = ("where", "claim", "number", "within", "formula" if new else "paper", "proof" if new else "right", "verdict")
        reference = f" ([{paper.number}])" if paper.number else ""
        parts.append(f"### {paper.title}{reference}\n\n{format_markdown(head, rows)}")
    return "\n".join(parts)


def rewrite_pages(docs: Path) -> dict[Path, str]:
    """Return the new text of docs/errata.md and docs/audit.md by path, from the audit stored beside them."""
    stored = json.loads((docs / "audit.json").read_text(encoding="utf-8"))
    page = (docs / "audit.md").read_text(encoding="utf-8")
    # text outside of the markers is written by hand
    before, after = page.split(BEGIN_MARKER)[0], page.split(END_MARKER)[-1]
    return {
        docs / "errata.md": build_errata(),
        docs / "audit.md": f"{before}{BEGIN_MARKER}\n{build_tables(stored)}\n{END_MARKER}{after}",
    }
