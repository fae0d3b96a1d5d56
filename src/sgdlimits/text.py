"""Formatting of printed results and messages: aligned columns, amounts of memory, counts with nouns, enumerations."""

from __future__ import annotations

import difflib
import re
import unicodedata
from collections.abc import Iterable, Sequence

NUMBER_WORDS = {"nan": "not known", "inf": "infinite", "-inf": "minus infinite"}
"""Words that tables print for NaN and infinite numbers."""
SCHEDULE_TEXT = re.compile(r"\(|\bt\b")
"""Pattern that tells a string that is meant as a schedule from a number or a name: a bracket, or the time t."""


def format_table(rows: Iterable[Sequence[str]], align: str = "<", indent: str = "") -> str:
    """Format the rows of a table as lines with aligned columns, which are separated by two spaces.

    Parameters
    ----------
    rows : rows with the same number of cells, including the names of columns
    align : "<" (left) or ">" (right) for each column; the last one applies to all further columns
    indent : text before each line

    >>> print(format_table([("level", "runs"), ("SGD", "8"), ("chain", "256"), ("SDE", "nan")], "<>", indent="  "))
      level       runs
      SGD            8
      chain        256
      SDE    not known
    """
    columns = list(zip(*([NUMBER_WORDS.get(cell, cell) for cell in row] for row in rows), strict=True))
    sides = align.ljust(len(columns), align[-1])
    widths = [max(map(len, cells)) for cells in columns]
    pad = lambda cell, side, width: cell.rjust(width) if side == ">" else cell.ljust(width)
    lines = ("  ".join(map(pad, cells, sides, widths)) for cells in zip(*columns, strict=True))
    return "\n".join((indent + line).rstrip() for line in lines)


def escape_controls(text: str) -> str:
    """Escape the control characters in a string from an untrusted source, which a terminal would obey.

    >>> print(escape_controls("a\x1b[31mb\u202ec"))
    a\\x1b[31mb\\u202ec
    """
    safe = lambda letter: letter in "\n\t" or unicodedata.category(letter) not in ("Cc", "Cf", "Cs", "Zl", "Zp")
    return "".join(letter if safe(letter) else ascii(letter)[1:-1] for letter in text)


def format_bytes(number: float) -> str:
    """Return a number of bytes as a string with two digits and a unit.

    >>> format_bytes(3e9), format_bytes(3e8), format_bytes(700)
    ('2.8 GiB', '290 MiB', '700 bytes')
    """
    for power, unit in ((4, "TiB"), (3, "GiB"), (2, "MiB"), (1, "KiB")):
        if number >= 1024**power:
            # Two digits, but without an exponent: 290, not 2.9e+02.
            return f"{float(f'{number / 1024**power:.2g}'):g} {unit}"
    return f"{number:.0f} bytes"


def format_count(number: int, one: str, many: str = "") -> str:
    """Return a number with its noun in the singular or plural, such as "3 runs".

    >>> format_count(1, "run"), format_count(3, "run"), format_count(2, "symmetry", "symmetries")
    ('1 run', '3 runs', '2 symmetries')
    """
    return f"{number} {one if number == 1 else many or one + 's'}"


def join_words(words: Sequence[str]) -> str:
    """Join several words into an enumeration with commas and "and", such as "sgd, chain and sde".

    >>> join_words(["sgd", "chain", "sde"]), join_words(["ode"])
    ('sgd, chain and sde', 'ode')
    """
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def suggest_name(wrong: str, names: Iterable[str]) -> str:
    """Return a question that suggests the known name closest to a wrong one, or an empty string if none is close.

    >>> suggest_name("rum", ["run", "plot"]), suggest_name("x", ["run"])
    ('Did you mean run? ', '')
    """
    # Options of the command line are typed with dashes, arguments with underscores: either may be meant.
    plain = {name.replace("_", "-"): name for name in names}
    close = difflib.get_close_matches(wrong.replace("_", "-"), list(plain), n=1)
    return f"Did you mean {plain[close[0]]}? " if close else ""
