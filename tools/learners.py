"""Write the page about learners and its picture from their record: ``python -m tools.learners``.

``docs/learners.md`` and ``figures/learners.svg`` exist where ``figures/records/bench_learners.json`` does.
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import plotly.graph_objects as go

from tools.tables import records
from uavlab_lab.headless import pictures
from uavlab_lab.plots.learners import learning_record, score_text

NAME = "bench_learners"
ROOT = records.ROOT
PAGE, PICTURE = "docs/learners.md", "figures/learners.svg"
WIDTH = 700  # px
MAKE, DRAW = f"uavlab bench learners --device cpu --out figures/records/{NAME}.json", "python -m tools.learners"
HEAD = "environment | learner | updates | ms per update | score | last policies | random | best plan | share of the way"
LINE = "{environment} | {learner} | {updates} | {update_ms} | {best} | {last} | {random} | {plan} | {share}"


def page(record: Mapping[str, Any]) -> str:
    """Return the text of the page."""
    rows, minutes, seeds = record["rows"], f"{record['minutes']:g}", record["seeds"]
    parts = [
        "# Learners",
        f"Every learner that fits on {', '.join(dict.fromkeys(row['environment'] for row in rows))}: a run for each "
        f"pair, of {counted(seeds)} side by side in one process, which share {minutes} minutes of training. A learner "
        "that takes longer per update makes fewer. The settings are those of presets, which were not searched for each "
        "pair.",
        f"![Scores over minutes of training]({Path('..', PICTURE).as_posix()})",
        "The picture shows validation scores, by which each run chooses the policies that it keeps. The table scores "
        "the kept policies, and the last ones, in other episodes; brackets are 95 % intervals, of learners over the "
        "seeds, of random actions and plans over the episodes. The share of the way is that from random actions to "
        "the best plan: 1 is as good as the plan. Its interval has the uncertainty of all three scores.",
        records.table(HEAD, LINE, map(cells, rows)),
        *failures(rows),
        "A score is a sum of figures, of which more is better: " + "; ".join(formulas(rows)) + ".",
        f"Picture and page are made by `{DRAW}`, from [their record](../figures/records/{NAME}.json): "
        f"{records.measured(record)}, torch {record['machine']['torch']}. "
        f"Runs were trained on {records.listed_machines(trained_on(rows))}. A study that is interrupted goes on when "
        "it is started again. These commands train each run again:",
        "\n".join(["```", *(row["trained"]["command"] for row in rows), "```"]),
    ]
    return "\n\n".join(parts) + "\n"


def trained_on(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the machine that trained each run."""
    return [row["trained"]["machine"] for row in rows if row["trained"]["machine"]]


def counted(seeds: int) -> str:
    """Return a number of seeds as text."""
    return f"{seeds} seeds" if seeds > 1 else "1 seed"


def cells(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the texts of a row; a run without figures has dashes."""
    plan = f"{row['plan']}: {figure(row['plans'][row['plan']])}" if row["plan"] else "-"
    texts = {key: figure(row[key]) for key in ("best", "last", "random")}
    numbers = {key: "-" if row[key] is None else f"{row[key]:,.0f}" for key in ("updates", "update_ms")}
    return {**row, **numbers, **texts, "plan": plan, "share": figure(row["share"], ".2f")}


def figure(value: Mapping[str, float] | None, shape: str = ".3f") -> str:
    """Return a mean with its interval, or a dash."""
    if value is None:
        return "-"
    return f"{value['mean']:{shape}} [{value['low']:{shape}}, {value['high']:{shape}}]"


def failures(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a sentence for each run without figures."""
    return [
        f"{row['learner']} on {row['environment']} has no figures: {row['failed']}" for row in rows if row["failed"]
    ]


def formulas(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the score of each environment."""
    scores = {row["environment"]: score_text(row["score"]) for row in rows}
    return [f"{environment}: {text}" for environment, text in scores.items()]


def picture(record: Mapping[str, Any]) -> go.Figure:
    """Return the figure of a record."""
    seeds, minutes = record["seeds"], f"{record['minutes']:g}"
    shared = f", which the {seeds} seeds of a pair share" if seeds > 1 else ""
    return learning_record(
        record["rows"],
        title=f"Scores over {minutes} minutes of training{shared}",
        caption="Validation scores, which choose policies: means over the seeds with 95 % intervals. "
        "Dashed: random actions and the best plan, in other episodes.",
    )


def main(root: Path = ROOT) -> int:
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
