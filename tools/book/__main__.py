"""Build the book in build/book, and check its links; links to elsewhere are listed in build/book/outside.txt."""

import shutil
import sys
from pathlib import Path

from sphinx.cmd.build import build_main

from tools.book import links

ROOT = Path(__file__).resolve().parents[2]
OUT = ROOT / "build" / "book"


def main(out: Path = OUT, source: Path = ROOT) -> int:
    """Build the pages of ``source``, check them, and return 0 if nothing is wrong."""
    if (out / "objects.inv").exists():  # an earlier book: pages of files that are gone would stay
        shutil.rmtree(out)
    folders = ["-d", f"{out}.doctrees", "-c", str(ROOT / "docs"), str(source), str(out)]
    status = build_main(["-q", "-E", "-W", "--keep-going", "-n", *folders])
    report = links.check(out)
    (out / "outside.txt").write_text(links.text(report.outside), encoding="utf-8")
    for what, lines in (("leads nowhere", report.broken), ("loads from elsewhere", report.loaded)):
        for line in lines:
            print(f"book: {line} {what}", file=sys.stderr)
    if status or report.broken or report.loaded:
        return 1
    print(f"book: {out / 'index.html'}; links to elsewhere, not visited: {out / 'outside.txt'}")
    return 0


if __name__ == "__main__":
    sys.exit(main(*map(Path, sys.argv[1:])))
