"""Times of updates and iterations beside those of BenchMARL, from the record of ``python -m tools.peers``."""

from collections.abc import Mapping
from typing import Any

from tools.tables.records import exists, measured, read, speed_up, table

OTHERS = {"each": "BenchMARL", "one": "BenchMARL, one critic"}
NAMES = {"mappo": "MAPPO", "masac": "MASAC"}


def parts() -> list[str]:
    """Return the table and what was compared; nothing before the record is made."""
    if not exists("peers"):
        return []
    record = read("peers")
    by_width: dict[tuple[int, str], dict[str, Any]] = {}
    for row in record["rows"]:
        by_width.setdefault((row["hidden"], row["piece"]), {})[row["program"]] = row
    rows = [
        {
            "hidden": hidden,
            "piece": " ".join(NAMES.get(word, word) for word in piece.split()),
            "ours": programs["uavlab"],
            **{name: programs[program] for name, program in OTHERS.items()},
            **{f"over_{name}": speed_up(programs[program], "over_uavlab") for name, program in OTHERS.items()},
        }
        for (hidden, piece), programs in by_width.items()
    ]
    sizes, (facts, *_) = record["sizes"], record["programs"].values()
    rollout, masac, steps = sizes["mappo"], sizes["masac"], sizes["steps_per_iteration_of_masac"]
    versions = ", ".join(f"{name} {version}" for name, version in facts["benchmarl"]["versions"].items())
    return [
        table(
            "hidden | piece | uavlab (ms) | BenchMARL, a critic for each agent (ms) | over uavlab | "
            "BenchMARL, one critic (ms) | over uavlab",
            "{hidden} | {piece} | {ours[ms]:.1f} | {each[ms]:.1f} | {over_each} | {one[ms]:.1f} | {over_one}",
            rows,
        ),
        "Ratios are BenchMARL's time over that of uavlab: above 1 uavlab is faster, below 1 BenchMARL. With a critic "
        f"for each agent both train the same networks, by as many parameters ({parameters(record)}) and gradient "
        f"steps. {sizes['agents']} agents with {facts['uavlab']['observations']} observations, {sizes['worlds']} "
        f"worlds, `spread` of uavlab and `simple_spread` of VMAS. MAPPO: {rollout['rollout_steps']} steps, "
        f"{rollout['epochs']} passes of {rollout['minibatches']} minibatches. MASAC: {masac['batch']} rows, twin "
        f"critics; an iteration is {steps} steps and as many updates. Medians of {record['rounds']} rounds in which "
        f"the programs took turns, each in a process of its own with one thread. {versions}. {measured(record)}.",
        f"What differs. {' '.join(record['differences'])}",
    ]


def parameters(record: Mapping[str, Any]) -> str:
    """Return how many parameters actors and critics have, by learner and width."""
    return "; ".join(
        f"{NAMES[learner]} of width {hidden}: {count['actor']:,} and {count['critic']:,}"
        for hidden, facts in record["programs"].items()
        for learner, count in facts["uavlab"]["parameters"].items()
    )
