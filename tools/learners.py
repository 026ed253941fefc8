"""Write the page about learners and its picture from their record: ``python -m tools.learners``.

``docs/learners.md`` and ``figures/learners.svg`` exist where ``figures/records/bench_learners.json`` does.
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import plotly.graph_objects as go

from tools import tables
from tools.tables import records
from uavlab_lab.headless import pictures
from uavlab_lab.plots.learners import learning_record, score_text

NAME = "bench_learners"
PAGE, PICTURE = "docs/learners.md", "figures/learners.svg"
WIDTH = 700  # px
MAKE, DRAW = f"uavlab bench learners --device cpu --out figures/records/{NAME}.json", "python -m tools.learners"


def page(record: Mapping[str, Any]) -> str:
    return tables.render("learners", record=record, formulas=formulas) + "\n"


def formulas(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    scores = {row["environment"]: score_text(row["score"]) for row in rows}
    return [f"{environment}: {text}" for environment, text in scores.items()]


def picture(record: Mapping[str, Any]) -> go.Figure:
    shared = f", which the {record['seeds']} seeds of a pair share" if record["seeds"] > 1 else ""
    return learning_record(
        record["rows"],
        title=f"Scores over {record['minutes']:g} minutes of training{shared}",
        caption="Validation scores, which choose policies: means over the seeds with 95 % intervals. "
        "Dashed: random actions and the best plan, in other episodes.",
    )


def main(root: Path = records.ROOT) -> int:
    """Write page and picture, and return 0; without a record, explain how to make it, and return 1."""
    if not (records.RECORDS / f"{NAME}.json").exists():
        print(f"learners: no figures/records/{NAME}.json; `{MAKE}` makes it, in hours.", file=sys.stderr)
        return 1
    record = records.read(NAME)
    (svg,) = pictures.draw([picture(record)], WIDTH)
    (root / PICTURE).write_text(svg, encoding="utf-8")
    (root / PAGE).write_text(page(record), encoding="utf-8")
    print(f"{PAGE}, {PICTURE}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
