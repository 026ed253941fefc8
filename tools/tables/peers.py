"""Times of updates, of iterations and of learning beside those of BenchMARL, from the records of ``tools.peers``."""

from collections.abc import Mapping
from typing import Any

from tools.tables.records import NAMES, exists, listed_machines, measured, read, short, speed_up, table

PROGRAMS = {  # by the key of the column
    "ours": "uavlab",
    "each": "BenchMARL",
    "ours_one": "uavlab, one critic",
    "one": "BenchMARL, one critic",
}
OTHERS = ("each", "one")  # of which ratios are shown


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
            **{key: programs[program] for key, program in PROGRAMS.items()},
            **{f"over_{key}": speed_up(programs[PROGRAMS[key]], "over_uavlab") for key in OTHERS},
        }
        for (hidden, piece), programs in by_width.items()
    ]
    sizes, (facts, *_) = record["sizes"], record["programs"].values()
    rollout, masac, steps = sizes["mappo"], sizes["masac"], sizes["steps_per_iteration_of_masac"]
    versions = ", ".join(f"{name} {version}" for name, version in facts["benchmarl"]["versions"].items())
    return [
        table(
            "hidden | piece | uavlab, a critic for each agent (ms) | BenchMARL (ms) | over uavlab | "
            "uavlab, one critic (ms) | BenchMARL (ms) | over uavlab",
            "{hidden} | {piece} | {ours[ms]:.1f} | {each[ms]:.1f} | {over_each} | "
            "{ours_one[ms]:.1f} | {one[ms]:.1f} | {over_one}",
            rows,
        ),
        "Ratios are BenchMARL's time over that of uavlab: above 1 uavlab is faster, below 1 BenchMARL. Both train "
        f"the same networks, by as many parameters ({parameters(record)}) and gradient steps. {sizes['agents']} agents "
        f"with {facts['uavlab']['observations']} observations, {sizes['worlds']} worlds, `spread` of "
        f"uavlab and `simple_spread` of VMAS. MAPPO: {rollout['rollout_steps']} steps, {rollout['epochs']} passes of "
        f"{rollout['minibatches']} minibatches. MASAC: {masac['batch']} rows, twin "
        f"critics; an iteration is {steps} steps and as many updates. Medians of {record['rounds']} rounds in which "
        f"the programs took turns, each in a process of its own with one thread. {versions}. {measured(record)}.",
        f"What differs. {' '.join(record['differences'])}",
    ]


def learning() -> list[str]:
    """Return how long both programs train until teams reach a goal; nothing before the record is made."""
    if not exists("peers_learning"):
        return []
    record = read("peers_learning")
    by_seed: dict[int, dict[str, Any]] = {}
    for row in record["rows"]:
        by_seed.setdefault(row["seed"], {"seed": row["seed"]})[row["program"]] = row
    rows = [
        {
            "seed": seed,
            "ours": {**row["uavlab"], "iterations": iterations(record, row["uavlab"])},
            "theirs": {**row["BenchMARL"], "iterations": iterations(record, row["BenchMARL"])},
            "over": row["BenchMARL"]["seconds"] / row["uavlab"]["seconds"],
        }
        for seed, row in by_seed.items()
    ]
    sizes, facts = record["sizes"], record["programs"]["BenchMARL"]
    rollout = sizes["mappo"]
    return [
        table(
            "seed | uavlab (s) | iterations | BenchMARL (s) | iterations | over uavlab",
            "{seed} | {ours[seconds]:.1f} | {ours[iterations]} | {theirs[seconds]:.1f} | {theirs[iterations]} | "
            "{over:.1f}x",
            rows,
        ),
        f"Seconds of training until a team completes {record['goal']:.0%} of {sizes['episodes']} episodes of "
        f"`{sizes['task']}`, scored every {sizes['iterations']} iterations; scores take no part in the times. MAPPO of "
        f"both on the simulator of uavlab, in BenchMARL through `ul.to_torchrl`: {sizes['worlds']} worlds, "
        f"{rollout['rollout_steps']} steps, {rollout['epochs']} passes of {rollout['minibatches']} minibatches, width "
        f"{sizes['hidden']}, {facts['parameters']['actor']:,} and {facts['parameters']['critic']:,} parameters. "
        f"{len(rows)} seeds show an order, not a factor. "
        f"benchmarl {facts['versions']['benchmarl']}, torchrl {facts['versions']['torchrl']}; "
        f"`{short(record['command'])}`. {listed_machines([row['machine'] for row in record['rows']])}.",
        f"What differs. {' '.join(record['differences'])}",
    ]


def iterations(record: Mapping[str, Any], row: Mapping[str, Any]) -> int:
    """Return after how many iterations of training the last score of a row was taken."""
    return len(row["curve"]) * record["sizes"]["iterations"]


def parameters(record: Mapping[str, Any]) -> str:
    """Return how many parameters actors and critics have, by learner and width."""
    return "; ".join(
        f"{name_of(learner)} of width {hidden}: {count['actor']:,} and {count['critic']:,}"
        for hidden, facts in record["programs"].items()
        for learner, count in facts["uavlab"]["parameters"].items()
    )


def name_of(learner: str) -> str:
    """Return the name of a learner, with what its critics add."""
    name, comma, critics = learner.partition(",")
    return f"{NAMES[name]}{comma}{critics}"
