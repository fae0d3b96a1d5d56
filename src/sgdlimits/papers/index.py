"""Summaries of the figures, and an HTML page that shows all figures in a folder."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from html import escape
from pathlib import Path

from sgdlimits.papers.figures import FIGURES

QUICK_NOTE = "Made with --quick:"
"""First words of the caption's sentence on what is smaller than in the full figure."""
PAGE_TEMPLATE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>Figures of sgdlimits</title>
<style>
:root {{ --ink: #1c1c1c; --paper: #fff; --soft: #595959; --line: #d8d8d8; --link: #005a9c; }}
@media (prefers-color-scheme: dark) {{
  :root {{ --ink: #e6e6e6; --paper: #16181c; --soft: #a8adb5; --line: #3a3f47; --link: #7cc0ff; }}
}}
body {{ margin: 0 auto; max-width: 56rem; padding: 1rem; color: var(--ink); background: var(--paper);
  font: 1rem/1.5 system-ui, sans-serif; }}
a {{ color: var(--link); }}
nav {{ columns: 14rem; margin: 1rem 0 2rem; }}
nav a {{ display: block; }}
section {{ border-top: 1px solid var(--line); padding: 1rem 0; }}
h2 {{ font-size: 1.15rem; margin: 0 0 .2rem; }}
p {{ margin: .4rem 0; }}
img {{ display: block; box-sizing: border-box; max-width: 100%; height: auto; margin: .8rem auto; padding: .5rem;
  background: #fff; }}
.soft {{ color: var(--soft); font-size: .9rem; }}
</style>
</head>
<body>
<h1>Figures of sgdlimits</h1>
<p>{counts}. Each figure has a picture, a caption with the measured numbers, and the datasets behind both. The caption of a
quick figure says which parameters are smaller.</p>
<nav>
{contents}
</nav>
{sections}
</body>
</html>
"""
"""Template of the page, which loads nothing but the pictures beside it."""


def read_summary(name: str) -> str:
    """Return the first sentence of a figure's docstring, without importing its module."""
    # parsed rather than imported: a list of figures needs no JAX
    source = Path(__file__).parent.joinpath(*FIGURES[name].split(".")[2:]).with_suffix(".py").read_text(encoding="utf-8")
    text = ast.get_docstring(ast.parse(source)) or ""
    return re.sub(r" \[\d+\]_", "", " ".join(text.split("\n\n")[0].split())).rstrip(".")


def build_page(folder: Path, failed: Mapping[str, str]) -> str:
    """Build the HTML page of a folder: summary, picture, caption and files of each figure, and the errors of failed ones."""
    sections = {}
    for name in FIGURES:
        line, made = escape(read_summary(name)), all((folder / f"{name}.{kind}").is_file() for kind in ("png", "txt"))
        if name in failed:
            kind, body = "failed", f"<p>It could not be made. {escape(failed[name])}</p>"
        elif made:
            kind, body = _build_section(folder, name, line)
        else:
            continue
        head = f'<h2>{name} <span class="soft">{kind}</span></h2>\n<p>{line}.</p>'
        sections[name] = kind, f'<section id="{name}">\n{head}\n{body}\n</section>'
    kinds = [kind for kind, _ in sections.values()]
    counts = ", ".join(f"{kinds.count(kind)} {kind}" for kind in ("full", "quick", "failed") if kind in kinds)
    contents = "\n".join(f'<a href="#{name}">{name}</a>' for name in sections)
    return PAGE_TEMPLATE.format(
        counts=counts, contents=contents, sections="\n".join(section for _, section in sections.values())
    )


def _build_section(folder: Path, name: str, line: str) -> tuple[str, str]:
    """Return "quick" or "full", and the HTML of one figure's picture, caption and files.

    Here `line` is the figure's summary.
    """
    text = " ".join((folder / f"{name}.txt").read_text(encoding="utf-8").split())
    caption, mark, smaller = text.partition(QUICK_NOTE)
    # files of mediocrity-1-left are not those of a figure mediocrity-1
    longer = tuple(f"{other}{end}" for other in FIGURES if other.startswith(f"{name}-") for end in ".-")
    files = sorted({path.name for end in ".-" for path in folder.glob(f"{name}{end}*") if not path.name.startswith(longer)})
    body = [
        f'<img src="{name}.png" alt="{line}" loading="lazy">',
        f"<p>{escape(caption.strip())}</p>",
        *([f'<p class="soft">{mark}{escape(smaller)}</p>'] if mark else []),
        f'<p class="soft">Files: {", ".join(f"""<a href="{escape(file)}">{escape(file)}</a>""" for file in files)}</p>',
    ]
    return "quick" if mark else "full", "\n".join(body)
