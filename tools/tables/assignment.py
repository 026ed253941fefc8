"""What teams of `assignment` learn, how policies transfer to other sizes, and what curricula are worth."""

from collections.abc import Iterable, Mapping
from typing import Any

from tools.tables.records import exists, interval_of, listed_machines, measured, over_seeds, read, scored, short, table
from uavlab.experiment.config import configure

SEEDS = (0, 1, 2)
STAGES = "assignment_curriculum"
LEFT_OUT = {"near": "4 neighbours, whatever the size", "jitter": "no jitter", "positions": "no relative positions"}


def parts() -> list[str]:
    """Return the tables and how they were made; nothing before the first record is made."""
    names = [name for name in (f"transfer_{seed}" for seed in SEEDS) if exists(name)]
    return [*(stages(names) if names else []), *sizes(), *left_out(), *followers(), *curricula()]


def stages(names: Iterable[str]) -> list[str]:
    """Return the scores of trained policies at each stage, beside those of rules and of a solver."""
    records = [read(name) for name in names]
    rows = [
        {
            **each[0],
            "uavs": _sizes(each[0], "uavs"),
            "targets": _sizes(each[0], "targets"),
            "score": over_seeds([row["score"] for row in each]),
            "greedy": over_seeds([row["plans"]["greedy"] for row in each]),
            "ratio": over_seeds([row["ratio"] for row in each]),
            **{key: over_seeds([row["over"]["greedy"][key] for row in each]) for key in ("completion", "distance")},
        }
        for each in zip(*(record["rows"] for record in records), strict=True)
    ]
    minutes = sorted(round(record["trained"][0]["seconds"] / 60) for record in records)
    return [
        table(
            "stage | UAVs | targets | score | greedy | completion over greedy's | way over greedy's | score over home",
            f"{{stage}} | {{uavs}} | {{targets}} | {interval_of('score', '.3f')} | {{greedy[mean]:.3f}} | "
            f"{interval_of('completion', '.2f')} | {interval_of('distance', '.2f')} | {interval_of('ratio', '.2f')}",
            rows,
        ),
        f"`assignment_quick`, {len(records)} seeds, trained at stage 2 alone, {minutes[0]} to {minutes[-1]} min of "
        f"one core; {records[0]['episodes']} unseen scenarios per stage and seed, the likeliest moves, greedy in the "
        "same scenarios. The score is completion times one minus congestion. Intervals: Student's t over the seeds. "
        f"{scored(*names)} Records: `figures/records/transfer_*.json`.{_solver()}",
    ]


def _solver() -> str:
    """Return how far the first policy is from a solver of integer programs, which commit f4a65ba9 still has."""
    if not exists("transfer_solver"):
        return ""
    record = read("transfer_solver")
    over = [
        "{stage}: {score:.2f} and {way:.2f}".format(
            stage=row["stage"],
            score=row["over"]["solver"]["normalized_score"]["mean"],
            way=row["over"]["solver"]["distance"]["mean"],
        )
        for row in record["rows"]
    ]
    return (
        " Over a solver of integer programs (policy `solver` of commit f4a65ba9), with 10 s for each of "
        f"{record['episodes']} scenarios, score and way of the first seed are, by stage, {', '.join(over)}. "
        f"{measured(record)}."
    )


def sizes() -> list[str]:
    """Return how one policy does with as many UAVs as targets, up to more than it ever saw."""
    if not exists("transfer_sizes"):
        return []
    record = read("transfer_sizes")
    rows = _beside(record, "greedy", "completion", "distance")
    return [
        table(
            "UAVs and targets | score | greedy | completion over greedy's | way over greedy's | score over home",
            f"{{size}} | {interval_of('score', '.3f')} | {{greedy[mean]:.3f}} | {interval_of('completion', '.2f')} | "
            f"{interval_of('distance', '.2f')} | {interval_of('ratio', '.2f')}",
            rows,
        ),
        f"Seed 0 with as many UAVs as targets; {record['episodes']} scenarios of each size, intervals bootstrapped. "
        f"{measured(record)}.",
    ]


def left_out() -> list[str]:
    """Return what transfer is without a part of the design."""
    known = {name: read(f"transfer_{name}") for name in LEFT_OUT if exists(f"transfer_{name}")}
    if not known:
        return []
    rows = [{"what": "all", "record": read("transfer_0")}]
    rows += [{"what": LEFT_OUT[name], "record": record} for name, record in known.items()]
    return [
        table(
            "left out, seed 0 | score at stage 2 | score at stage 4 | over home | way over greedy's",
            f"{{what}} | {{home[mean]:.3f}} | {interval_of('score', '.3f')} | {interval_of('ratio', '.2f')} | "
            "{way[mean]:.2f}",
            [
                {
                    **row["record"]["rows"][-1],
                    "what": row["what"],
                    "home": row["record"]["home"],
                    "way": row["record"]["rows"][-1]["over"]["greedy"]["distance"],
                }
                for row in rows
            ],
        ),
        "One seed each; intervals are bootstrapped over scenarios. The rule of a quarter gives 4 neighbours up to 16 "
        "things, so 4 everywhere train the same policy, and differ at stage 4 alone. "
        f"{scored(*(f'transfer_{name}' for name in known))}",
    ]


def followers() -> list[str]:
    """Return what a trained pair of leader and follower does as a larger team."""
    if not exists("transfer_leader_follower"):
        return []
    record = read("transfer_leader_follower")
    rows = _beside(record, "steer", "formation_strict", "path")
    return [
        table(
            "followers | completion | over home | steer | strict formation over steer's | path over steer's",
            f"{{size}} | {interval_of('score', '.3f')} | {interval_of('ratio', '.2f')} | {{steer[mean]:.3f}} | "
            f"{interval_of('formation_strict', '.2f')} | {interval_of('path', '.2f')}",
            rows,
        ),
        f"`{short(record['trained'][0]['command'])}` trains with one follower; none was trained again. "
        f"{record['episodes']} episodes of each size, the plan `steer` in the same. {measured(record)}.",
    ]


def curricula() -> list[str]:
    """Return the study of curricula."""
    if not exists("bench_curriculum"):
        return []
    record = read("bench_curriculum")
    rows = [
        {
            **row,
            "what": {"curriculum": "in stages", "alone": "on the last stage alone"}[row["way"]],
            "difference": _signed(row["difference"]),
            "reached": ", ".join(map(str, row["reached"])),
        }
        for row in record["rows"]
    ]
    episodes = " or ".join(map(str, sorted({row["episodes"] for row in record["rows"]})))
    return [
        table(
            "preset | trained | updates | score at the last stage | change by the curriculum | stage reached",
            f"`{{preset}}` | {{what}} | {{updates}} | {interval_of('last_stage', '.3f')} | {{difference}} | "
            "{reached}",
            rows,
        ),
        f"{record['minutes']:g} min of training for {record['seeds']} seeds together, in one process; a curriculum "
        f"that loses is shown as losing. Policies are scored in the same {episodes} episodes of each seed; "
        f"intervals: Student's t over the seeds. `{short(record['command'])}`. Trained on "
        f"{listed_machines([row['trained']['machine'] for row in record['rows']])}.",
    ]


def _beside(record: Mapping[str, Any], plan: str, *figures: str) -> list[dict[str, Any]]:
    """Return the rows of a record with the score of a plan, and the ratios of some figures to those of the plan."""
    return [
        {**row, plan: row["plans"][plan], **{name: row["over"][plan][name] for name in figures}}
        for row in record["rows"]
    ]


def _sizes(row: Mapping[str, Any], name: str) -> str:
    """Return the fewest and most things of a stage; what it does not set is the preset's own."""
    return "{} to {}".format(*row["settings"].get(name, getattr(configure(STAGES).env, name)))


def _signed(ends: Mapping[str, float] | None) -> str:
    return "-" if ends is None else "{mean:+.3f} [{low:+.3f}, {high:+.3f}]".format(**ends)
