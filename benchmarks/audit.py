"""The audit at default effort, and the pages made of it: docs/audit.json, the tables of docs/audit.md, and docs/errata.md.

python benchmarks/audit.py            # about two minutes of one core
python benchmarks/audit.py --pages    # from docs/audit.json as it is
"""

from __future__ import annotations

import argparse
import resource
import time
from pathlib import Path

from sgdlimits.files import write
from sgdlimits.papers.audit import audit
from sgdlimits.papers.errata import rewrite_pages

DOCS = Path(__file__).parent.parent / "docs"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--pages", action="store_true", help="rewrite the pages from docs/audit.json as it is")
    if not parser.parse_args().pages:
        begin = time.perf_counter()
        found = audit()
        print(found)
        found.save(DOCS / "audit.json")
        usage = resource.getrusage(resource.RUSAGE_SELF)
        cpu = usage.ru_utime + usage.ru_stime
        print(f"{cpu:.0f} CPU seconds in all, {time.perf_counter() - begin:.0f} s of wall time")
    for path, text in rewrite_pages(DOCS).items():
        write(path, text.encode())


if __name__ == "__main__":
    main()
