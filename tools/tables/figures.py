"""What the tables compute from records: means over seeds, differences, shares and moments."""

from collections.abc import Iterable, Mapping
from typing import Any

from tools.tables.records import Figure, Row, names, over_seeds, read, spread, trained_row
from uavlab.experiment.config import configure
from uavlab.experiment.cross_play import CrossPlay
from uavlab.telemetry.predict import MOST
from uavlab_lab.claims import report
from uavlab_lab.claims.ledger import ledger


def trained_rows(labels: Mapping[str, str], *keys: str) -> list[dict[str, Any]]:
    """Return a row of the trained policies of each record, with a label."""
    return [{**trained_row(name, *keys), "label": label} for name, label in labels.items()]


def chosen(preset: str) -> str:
    """Return how the policy of a run was chosen."""
    run = configure(preset).run
    assessed = f"{run.updates // run.evaluate_every} scores of its training, of {run.evaluate_episodes} episodes each"
    return f"the best by {assessed}; the episodes behind this table are others"


def cpus(names: Iterable[str]) -> set[str]:
    return {run["machine"]["cpu"] for name in names for run in read(name)["trained"]}


def hidden_states(name: str) -> dict[str, Figure]:
    """Return R² of each hidden state over the seeds of a record."""
    rows = read(name)["rows"]
    return {state: over_seeds([row["r2"][state] for row in rows]) for state in rows[0]["r2"]}


def most_windows() -> int:
    """Return to how many windows a regression is fitted at most."""
    return MOST


def physics() -> dict[str, Any]:
    """Return R² without and with equations of flight in the loss, and its change by the seed."""
    without, with_it = (read(f"telemetry_{name}")["rows"][0]["mean_r2"]["each"] for name in ("tenth", "physics"))
    change = spread([b - a for a, b in zip(without, with_it, strict=True)])
    return {"seeds": len(without), "without": sum(without) / len(without), "with_it": sum(with_it) / len(with_it),
            "change": change}  # fmt: skip


def minutes(record: Row) -> int:
    """Return how long the first run of a record trained."""
    return round(record["trained"][0]["seconds"] / 60)


def stages(records: Iterable[Row]) -> list[dict[str, Any]]:
    """Return what trained policies reach at each stage, beside the plan ``greedy``, over the seeds."""
    preset = configure("assignment_curriculum").env
    return [
        {
            "stage": seeds[0]["stage"],
            **{name: seeds[0]["settings"].get(name, getattr(preset, name)) for name in ("uavs", "targets")},
            "score": over_seeds([row["score"] for row in seeds]),
            "greedy": over_seeds([row["plans"]["greedy"] for row in seeds]),
            "ratio": over_seeds([row["ratio"] for row in seeds]),
            **{key: over_seeds([row["over"]["greedy"][key] for row in seeds]) for key in ("completion", "distance")},
        }
        for seeds in zip(*(record["rows"] for record in records), strict=True)
    ]


def way_of_return(row: Row) -> str:
    """Return the share of the way from random actions to the plan by the mean return."""
    best, plan, random = (row["returns"][key] for key in ("best", "plan", "random"))
    return f"{(best - random) / (plan - random):.2f}"


def met(row: Row, group: str, player: str, opponent: str) -> str:
    """Return the mean score of a group that ``player`` plays while ``opponent`` plays all other groups."""
    meetings = row["meetings"]
    play = CrossPlay(tuple(meetings[0]["players"]), (player, opponent), tuple(dict(meeting) for meeting in meetings))
    return f"{play.score(group, player, opponent)['mean']:.2f}"


def ladder_rows() -> list[dict[str, Any]]:
    """Return the loop, the best setting in float32 and the best of all with one thread, for each team."""
    rows, records = [], [row for row in read("bench_ladder")["rows"] if row["threads"] == 1]
    for loop in (row for row in records if row["setting"] == "loop"):
        same = {row["setting"]: row for row in records if row["agents"] == loop["agents"]}
        (best,) = (row for row in same.values() if row["best"])
        exact = min((row for name, row in same.items() if "bf16" not in name), key=lambda row: row["ms"])
        paid = best["paid_back"]
        repaid = "never" if paid is None else f"{paid:,} updates" if paid else "at once"
        low = [f"{same[name]['over_below']:.2f}x" for name in same if name.endswith("bf16")]
        rows.append(
            {"loop": loop, "exact": exact, "best": best, "plain": same["batched"], "repaid": repaid, "bf16": low}
        )
    return rows


def parameters(record: Row) -> str:
    """Return how many parameters actors and critics have, by learner and width."""
    return "; ".join(
        f"{names(learner)} of width {hidden}: {count['actor']:,} and {count['critic']:,}"
        for hidden, facts in record["programs"].items()
        for learner, count in facts["uavlab"]["parameters"].items()
    )


def reached(goal: float, row: Row, axis: str, unit: float) -> Figure | None:
    """Return where on an axis each seed first reached the goal, over the seeds; None where one never did."""
    curve = row["curve"]
    seeds = len(curve[0]["each"]["completion"]) if curve else 0
    places = [
        next((point[axis] / unit for point in curve if point["each"]["completion"][seed] >= goal), None)
        for seed in range(seeds)
    ]
    return None if None in places else spread([place for place in places if place is not None])


def claims_of(record: Row, shown: Iterable[str]) -> list[list[str]]:
    """Return the cells of some claims: by this record of a CPU, then by those of GPUs beside it."""
    each = [{**record, "others": []}, *record["others"]]
    columns = [[report.texts(row) for row in report.rows(ledger(), one) if row["claim"] in shown] for one in each]
    return [[*lines[0][:3], *(cell for line in lines for cell in line[3:])] for lines in zip(*columns, strict=True)]


def verdicts(record: Row) -> str:
    """Return how many claims have which verdict."""
    return report.count_verdicts(report.rows(ledger(), record))
