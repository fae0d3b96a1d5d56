"""`sgdlimits check`: the audit of all claims of the papers, each compared with an independent computation."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from sgdlimits.cli.options import Command, FileType, echo
from sgdlimits.cli.work import INTERRUPTED_CODE, check_output

if TYPE_CHECKING:
    from sgdlimits.papers.audit import Audit

# repeated here, so that --help need not import the papers; a test compares the two
PAPERS = ("mediocrity", "effective", "quadratic", "preprint", "slides", "new_results")


@click.command(cls=Command, short_help="Audit the papers: every claim that can be computed, judged.")
@click.option(
    "--effort", type=click.Choice(["quick", "default", "full"]), default="default", show_default=True,
    help="runs of statistical claims: a quarter, the usual number (about two minutes of one core), or 16 times as many",
)  # fmt: skip
@click.option("--paper", type=click.Choice(PAPERS), help="the claims of one paper, or the package's own")
@click.option("--only", help="claims whose name, place or title contains this word, such as (55) or plateau")
@click.option("--out", type=FileType(), help="a file of the table: .json, .csv or .md")
@click.option("--force", is_flag=True, help="replace a file that exists")
@click.option("--quiet", is_flag=True, help="no progress bar")
def check(effort: str, paper: str | None, only: str | None, out: str | None, force: bool, quiet: bool) -> None:
    """Check every claim of the papers that can be computed, by an independent computation, and print a verdict for each.

    For each claim: where it stands, the number, its interval or tolerance, what the paper says, what is right where that
    is something else, and the verdict: holds, misprint, disagreement or open. The exit code is 1 where a verdict is not
    the one on record. Ctrl-C keeps what was found.

    \b
    Example:
      sgdlimits check --effort quick --paper quadratic
      sgdlimits check --only "(55)"
      sgdlimits check --out audit.md
    """
    from sgdlimits.papers.audit import AuditInterrupted, audit, check_format, find_claims

    path = out and check_output(check_format(out), force)
    # refuse an unknown word before anything is computed
    find_claims(paper, only)
    try:
        report_audit(audit(effort, paper, only, progress=not quiet), path)
    except AuditInterrupted as stopped:
        report_audit(stopped.found, path)
        echo("Interrupted.", err=True)
        sys.exit(INTERRUPTED_CODE)


def report_audit(found: Audit, path) -> None:
    """Print the audit `found`, save it if a path is given, and exit with code 1 if a verdict is not the one on record."""
    echo(repr(found))
    if path:
        found.save(path)
        echo(f"Saved {path}.")
    if found.complete and found.unexpected:
        sys.exit(1)
