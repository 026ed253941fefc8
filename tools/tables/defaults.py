"""How far learners come with their defaults on tasks of others, from the record of a study."""

from collections.abc import Mapping, Sequence
from typing import Any

from tools.tables.records import NAMES, exists, interval_of, listed_machines, read, short, table
from uavlab.experiment.cross_play import CrossPlay

PAIRINGS = {  # who plays a group, and who the others
    "late against random": ("late", "random"),
    "random against random": ("random", "random"),
    "plan against random": ("plan", "random"),
    "late against early": ("late", "early"),
    "early against late": ("early", "late"),
}

Row = Mapping[str, Any]


def parts() -> list[str]:
    """Return the tables and how they were made; nothing before the record is made."""
    if not exists("defaults"):
        return []
    record = read("defaults")
    trained = listed_machines([row["machine"] for row in record["rows"]])
    by_pair: dict[tuple[str, str], list[Row]] = {}
    for row in record["rows"]:
        by_pair.setdefault((row["environment"], row["learner"]), []).append(row)
    one_sided = [ways(rows) for rows in by_pair.values() if "meetings" not in rows[0]]
    meetings = [line for rows in by_pair.values() if "meetings" in rows[0] for line in sides(rows)]
    return [
        table(
            "task | learner | updates | score at random | of the plan | of each seed | share of the way, each seed | "
            "share by return",
            f"{{task}} | {{learner}} | {{updates}} | {interval_of('random', '.3f')} | {interval_of('plan', '.3f')} | "
            "{scores} | {shares} | {returns}",
            one_sided,
        ),
        "The share of the way is that from random actions to the plan: 1 is as good as the plan. Policies are chosen "
        "by the score, which the author of a task set; learners raise the return. Groups that oppose each other, each "
        "seed's score of a group, by who plays it against whom:",
        table(
            f"task | learner | group | {' | '.join(PAIRINGS)}",
            "{task} | {learner} | {group} | " + " | ".join(f"{{{name}}}" for name in PAIRINGS),
            meetings,
        ),
        "The tasks and their plans (`tools/defaults` of commit a9213a91) were written by people who had not seen the "
        "learners' defaults; "
        f"on {' and '.join(f'`{task}`' for task in record['chosen_on'])} some of them were chosen afterwards, so "
        f"only the other tasks judge. {record['seeds']} runs of {record['minutes']:g} minutes each, all "
        f"settings at their defaults, one thread a run, on {trained}. The late policy of a group is "
        "its best by validation scores; the early one is the last of a run of a tenth of the time. "
        f"`{short(record['command'])}`.",
    ]


def ways(rows: Sequence[Row]) -> dict[str, Any]:
    """Return the line of a learner on a task of one score."""
    first = rows[0]
    return {
        "task": f"`{first['environment']}`",
        "learner": NAMES[first["learner"]],
        "updates": listed([row["updates"] for row in rows], ",.0f"),
        "random": first["random"],
        "plan": first["plans"][first["plan"]],
        "scores": listed([row["best"]["mean"] for row in rows], ".3f"),
        "shares": listed([row["share"]["mean"] for row in rows], ".2f"),
        "returns": listed([way_of_return(**row["returns"]) for row in rows], ".2f"),
    }


def way_of_return(best: float, plan: float, random: float) -> float:
    """Return the share of the way from random actions to the plan by the mean return."""
    return (best - random) / (plan - random)


def sides(rows: Sequence[Row]) -> list[dict[str, str]]:
    """Return a line for each group of a task whose groups oppose each other."""
    groups = list(rows[0]["meetings"][0]["players"])
    return [
        {
            "task": f"`{rows[0]['environment']}`",
            "learner": NAMES[rows[0]["learner"]],
            "group": group,
            **{
                name: listed([score(row["meetings"], group, *pairing) for row in rows], ".2f")
                for name, pairing in PAIRINGS.items()
            },
        }
        for group in groups
    ]


def score(meetings: Sequence[Row], group: str, own: str, others: str) -> float:
    """Return the mean score of a group that ``own`` plays while ``others`` plays all other groups."""
    play = CrossPlay(tuple(meetings[0]["players"]), (own, others), tuple(dict(each) for each in meetings))
    return play.score(group, own, others)["mean"]


def listed(values: Sequence[float], shape: str) -> str:
    """Return the values of all seeds."""
    return ", ".join(f"{value:{shape}}" for value in values)
