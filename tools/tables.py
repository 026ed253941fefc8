"""Print the tables of README and RELIABILITY from figures/records; ``--write`` puts them into their files.

A record holds its machine, commit and command; those of claims and proofs hold a commit for each row.
"""

import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from uavlab.benchmarks.claims import report
from uavlab.benchmarks.claims.ledger import ledger
from uavlab.benchmarks.timing import ENOUGH
from uavlab.core.bootstrap import student
from uavlab.evaluation import interval
from uavlab.telemetry.metrics import MOST

ROOT = Path(__file__).parents[1]
RECORDS = ROOT / "figures" / "records"
MARKS = {
    "README.md": ("<!-- tables: made by tools/tables.py -->", "<!-- end of tables -->"),
    "RELIABILITY.md": ("<!-- proofs: made by tools/tables.py -->", "<!-- end of proofs -->"),
}
CLAIMS = (  # a selection of the claims: each verdict, and the best known ones
    *("cached-forwards", "stage-1", "duplicate-waste-4", "amp-speed", "prefetch", "compile", "total"),
    *("cpu-not-applicable", "full-hours", "budget-10-missions", "budget-8", "map-constants", "throughput-drop"),
    *("prenormalised", "slow-env", "interval-10", "equal-updates", "eight-devices"),
)
LATER = "one measurement more (the published figure's count)"
Rows = Iterable[Mapping[str, Any]]


def read(name: str) -> dict[str, Any]:
    """Read one record."""
    return json.loads((RECORDS / f"{name}.json").read_text(encoding="utf-8"))


def table(head: str, line: str, rows: Rows, first: str = "", last: Iterable[str] = ()) -> str:
    """Format rows as a Markdown table.

    Args:
        head: The columns' names, separated by ``|``.
        line: A format string for each row.
        rows: Values by their names in ``line``.
        first: A line before the rows.
        last: Lines after the rows.
    """
    marks = " | ".join("---" for _ in head.split("|"))
    lines = [head, marks, *filter(None, [first]), *(line.format(**row) for row in rows), *last]
    return "\n".join(f"| {each} |" for each in lines)


def interval_of(key: str, shape: str) -> str:
    """Return the format string of a mean with its interval."""
    return f"{{{key}[mean]:{shape}}} [{{{key}[low]:{shape}}}, {{{key}[high]:{shape}}}]"


def machine(record: Mapping[str, Any]) -> str:
    """Return the CPU of a record and, where the record holds them, its family and model, and the load before."""
    known = record["machine"]
    load = f"load {known['load']} before" if known.get("load") is not None else ""
    changed = "by code that no commit holds" if known["dirty"] else ""
    return ", ".join(filter(None, [known["cpu"], known.get("cpu_id"), load, changed]))


def trained_row(name: str, *keys: str, **more: str) -> dict[str, Any]:
    """Return one row for all training seeds of a record: figures with intervals, seeds, and minutes of training."""
    record = read(name)
    rows, runs = record["rows"], record["trained"]
    figures = {key: over_seeds([row[key] for row in rows], key == "completion" and rows[0]["episodes"]) for key in keys}
    seeds = sum(len(run["seeds"]) for run in runs)
    minutes = dict.fromkeys(f"{time(run['seconds'] for run in runs) / 60:.0f}" for time in (min, max))
    counted = f"{seeds} seeds" if seeds > 1 else "1 seed"
    return {**figures, **more, "seeds": counted, "several": seeds > 1, "minutes": " to ".join(minutes)}


def over_seeds(figures: list[dict[str, Any]], episodes: int = 0) -> dict[str, Any]:
    """Return mean and ends of a figure over training seeds; of one seed as recorded.

    Those of a share of ``episodes`` are what ``evaluate`` returns of as many runs.
    """
    means = [mean for figure in figures for mean in figure.get("each", [figure["mean"]])]
    if episodes:
        wins = torch.tensor([round(mean * episodes) for mean in means])
        return vars(interval((torch.arange(episodes) < wins[:, None]).double(), outcomes=True))
    return figures[0] if len(means) == 1 else dict(zip(("mean", "low", "high"), student(means), strict=True))


def method(*rows: Mapping[str, Any]) -> str:
    """Return how the intervals of trained policies were made."""
    several, one = (any(row["several"] is wanted for row in rows) for wanted in (True, False))
    ways = ["Student's t over the means of training seeds"] * several + ["over the episodes of the one seed"] * one
    return f"Intervals: {', '.join(ways)}. The same seed gives another team on another machine."


def trained_on(*names: str) -> str:
    """Return the machines on which the policies of some records were trained."""
    machines = [{**run["machine"], "load": None} for name in names for run in read(name)["trained"]]
    return "Trained on " + " and ".join(dict.fromkeys(machine({"machine": each}) for each in machines))


def against(ours: Mapping[str, Any], theirs: Mapping[str, Any], low: Iterable[str]) -> str:
    """Return whether ours is better than each figure of another policy, by its interval; ``low`` ones are costs."""
    names, words = {1: "better", -1: "worse", 0: "no different"}, []
    for key in ours.keys() & theirs.keys() - {"title"}:
        way = (ours[key]["low"] > theirs[key]) - (ours[key]["high"] < theirs[key])
        words.append(f"{key.replace('_', ' ')} {names[-way if key in low else way]}")
    return ", ".join(sorted(words))


def ladder_rows() -> list[dict[str, Any]]:
    """Return the loop, the best setting in float32 and the best of all with one thread, for each team."""
    rows, records = [], [row for row in read("bench_ladder")["rows"] if row["threads"] == 1]
    for loop in (row for row in records if row["setting"] == "loop"):
        same = {row["setting"]: row for row in records if row["agents"] == loop["agents"]}
        (best,) = (row for row in same.values() if row["best"])
        exact = min((row for name, row in same.items() if "bf16" not in name), key=lambda row: row["ms"])
        paid = best["paid_back"]
        repaid = "never" if paid is None else f"{paid:,} updates" if paid else "at once"
        cached = [row.get("over_cached", same["cached"]["ms"] / row["ms"]) for row in (same["batched"], best)]
        batched = f"{same['batched']['over_loop']:.2f}x, {cached[0]:.2f}x"
        low = [f"{same[name]['over_below']:.2f}x" for name in same if name.endswith("bf16")]
        row = {"loop": loop, "exact": exact, "best": best, "repaid": repaid}
        rows.append({**row, "cached": cached, "batched": batched, "bf16": low})
    return rows


def physics() -> dict[str, Any]:
    """Return the change of R² by equations of flight in the loss, on a tenth of the flights."""
    without, with_it = (read(f"telemetry_{name}")["rows"][0]["mean_r2"]["each"] for name in ("tenth", "physics"))
    change, low, high = student([b - a for a, b in zip(without, with_it, strict=True)])
    means = {"without": sum(without) / len(without), "with_it": sum(with_it) / len(with_it)}
    return {"seeds": len(without), **means, "change": change, "low": low, "high": high}


def claims() -> str:
    """Return the claims about speed with what was measured here, and a count of all verdicts."""
    rows = report.rows(ledger(), read("claims_amd-epyc-family-25-model-17-stepping-1-2-cores"))
    head = "claim | claimed | device | measured | verdict"
    text = table(head, "", [], last=[" | ".join(report.texts(row)) for row in rows if row["claim"] in CLAIMS])
    why = "A claim about a GPU has no verdict from a CPU. A verdict may rest on arithmetic; then its note says so."
    return f"{text}\n\n{report.count_verdicts(rows)}. {why}"


def followers() -> list[str]:
    """Return the scores of trained leader-follower teams."""
    shapes = {"completion": ".3f", "formation_strict": ".2f", "flight_time": ".0f", "path": ".0f", "energy": ".0f"}
    theirs = read("literature")["leader_follower"]
    published = [
        [row["title"], *("-" if row[key] is None else f"{row[key]:{shape}}" for key, shape in shapes.items())]
        for row in theirs.values()
    ]
    names = {"published_sampled": "sampled actions", "published_mean": "mean action"}
    ours = [trained_row(name, *shapes, label=label) for name, label in names.items()]
    low = ("flight_time", "path", "energy")
    labels = {"quick": "8 000 updates", "quick_12_minutes": "12 minutes"}
    quick = [trained_row(name, "completion", "formation_strict", label=label) for name, label in labels.items()]
    return [
        table(
            "the published test: 1 + 4, 0.1 s steps | completion | strict formation | steps | path (px) | energy",
            "ours, {seeds}, {label}, {minutes} min of training | "
            + " | ".join(map(interval_of, shapes, shapes.values())),
            ours,
            last=map(" | ".join, published),
        ),
        f"{method(*ours)} {trained_on(*names)}. The published rows have two sources: the shipped weights, measured in "
        "their program over 500 episodes of sampled actions, and the data of the paper's figures, which give no "
        f"completion. Ours with sampled actions against the weights: {against(ours[0], theirs['weights'], low)}. "
        "The published program counts a flight from step 0, ours every step: 0.4 % more steps, the same flights.",
        "Ours trained on less than they are tested on: one follower, 1 s steps, reward prices of their own and "
        "wider obstacles (`leader_follower_published` in `uavlab/experiment/presets.toml`). But each policy was chosen "
        "on the published test: the best of 60 scores of its training, of 300 episodes each; the episodes behind this "
        "table are others. Records: `figures/records/published_*.json` and `literature.json`.",
        table(
            "1 + 1, 1 s steps | training (min) | completion | strict formation",
            "`leader_follower_quick`, {label}, {seeds} | {minutes} | "
            f"{interval_of('completion', '.3f')} | {interval_of('formation_strict', '.2f')}",
            quick,
        ),
        f"{method(*quick)} {trained_on(*labels)}. Each policy is the one of its training with the best score, which "
        "weighs completion, formation and time. Records: `figures/records/quick*.json`.",
    ]


def mapping() -> list[str]:
    """Return the map quality of missions, and the time of their steps."""
    maps, missions = read("bench_maps"), read("bench_missions")
    plans = {"expected_entropy": "expected entropy", "information_gain": "information gain, as published"}
    plans |= {"sweep": "sweep", "random": "random"}
    ours, study = trained_row("mapping_quick", "entropy", "f1"), read("bench_plan")
    later = next(row for row in study["rows"] if row["decision"] == LATER)
    ends = " [{low:.1f}, {high:.1f}]" if "low" in missions["rows"][0] else ""
    few = f", too few for an interval{': brackets are their range' * bool(ends)}" if missions["rounds"] < ENOUGH else ""
    return [
        table(
            "4 UAVs, 15 measurements each, 50 missions | weighted entropy (bit) | F1",
            f"{{title}} | {interval_of('entropy', '.3f')} | {interval_of('f1', '.3f')}",
            [
                {**ours, "title": "`mapping_quick`, {seeds}, {minutes} min of training".format(**ours)},
                *({**read(f"mapping_{plan}")["rows"][0], "title": title} for plan, title in plans.items()),
            ],
            last=(
                "{title} ‡ | {entropy[0]:.3f} ± {entropy[1]:.3f} | {f1[0]:.3f} ± {f1[1]:.3f}".format(**row)
                for row in read("literature")["mapping"].values()
            ),
        ),
        f"{method(ours)} Those of the plans are bootstrapped over missions. {trained_on('mapping_quick')}. "
        "`mapping_quick` is not the published program: maps are centred on each UAV, gamma is 0.5, convolutions have "
        "32 channels instead of 256, and moves are sampled, where the published program takes the likeliest. "
        "The published information gain is scored after 16 measurements: ours then leaves "
        f"{later['entropy']:.3f} [{later['low']:.3f}, {later['high']:.3f}] bit, and {study['few']['missions']} of its "
        f"missions a mean of {study['few']['low']:.3f} to {study['few']['high']:.3f}. It weighs outcomes by the "
        "belief; `expected_entropy` weighs them by the chance of a positive measurement and is the stronger plan. "
        "`uavlab bench plan` measures what each decision of the plan is worth. "
        "Records: `figures/records/mapping_*.json`, `figures/records/bench_plan.json`.",
        "‡ mean and standard deviation over missions: the paper's table, as another publication quotes it, and its "
        "program run again for the plans (`figures/records/literature.json`).",
        table(
            "maps | setting | missions | team step (ms per mission) | over one process | over 2 processes",
            "{path} | {setting} | {missions} | {team_step_ms:.1f} | **{over_host:.1f}x** | {over_pool}",
            [{**row, "over_pool": times(row.get("over_pool"), ".1f")} for row in maps["rows"]],
        ),
        "`uavlab bench maps`: 493 x 493 cells, 4 UAVs, without the policy; "
        f"{maps['rows'][-1]['bytes_per_mission'] / 2**20:.1f} MiB of state per mission. {machine(maps)}."
        + (
            ""
            if "over_pool" in maps["rows"][0]
            else " When this was recorded, the host computed some maps twice, about an eighth of its time; ratios over "
            "it are too large by as much."
        ),
        table(
            "published network, 336 moves, 5 passes | training step (s) | per 300 moves (s) | over plain",
            "{setting} | {s:.1f} | {s_per_300:.1f} | {over_plain:.1f}x{ends}",
            [{**row, "ends": ends.format(**row)} for row in missions["rows"]],
        ),
        f"`uavlab bench missions`: medians of {missions['rounds']} rounds{few}. "
        f"{machine(missions)}. The published program took 13.0 s per 300 moves on one core of another machine.",
    ]


def times(value: float | None, shape: str) -> str:
    """Return a speed-up, or a dash where a record holds none."""
    return "-" if value is None else f"{value:{shape}}x"


def telemetry() -> list[str]:
    """Return how well hidden states of flights are predicted, and how fast windows are loaded."""
    linear = {**read("telemetry_ridge")["rows"][0], "title": "ridge regression †"}
    *targets, tracking = linear["r2"]
    record, loading = read("telemetry_full"), read("bench_telemetry")
    ours = trained_row("telemetry_full", "mean_r2")
    r2 = {name: over_seeds([row["r2"][name] for row in record["rows"]]) for name in linear["r2"]}
    return [
        table(
            f"R² on 90 unseen flights | mean | {' | '.join(targets).replace('_', ' ')} | error in 0.5 s",
            f"{{title}} | {interval_of('mean_r2', '.3f')} | "
            + " | ".join(f"{{r2[{target}][mean]:.2f}}" for target in (*targets, tracking)),
            [
                {
                    **ours,
                    "r2": r2,
                    "title": "`telemetry_full --toggles laptop`, {seeds}, {minutes} min of training".format(**ours),
                },
                linear,
            ],
        ),
        f"{method(ours)} {trained_on('telemetry_full')}, compiled and with products in bfloat16, "
        "as `laptop` sets there.",
        f"† on the same windows, but fitted to at most {MOST:,} of them, every seventh; its interval is bootstrapped "
        "over flights.",
        "Equations of flight in the loss (`--set physics=0.1`), on a tenth of the training flights, {seeds} "
        "seeds, 2 000 updates: mean R² {without:.3f} without, {with_it:.3f} "
        "with them; they change it by {change:+.4f} [{low:+.4f}, {high:+.4f}], Student's t over the seeds. "
        "Records: `figures/records/telemetry_*.json`.".format(**physics()),
        table(
            "windows per second | loader alone | over per_item | model alone | both | both of the model's | "
            "memory over the raw series",
            "`loader={path}` | {loader:,} | {over_per_item:.0f}x | {model:,} | {both:,} | "
            "{of_model:.0%} [{low:.0%}, {high:.0%}] | {memory:.2f}",
            [{**row, "memory": row["bytes"] / row["raw_bytes"]} for row in loading["rows"]],
        ),
        "`uavlab bench telemetry`: 256 windows of 200 rows, float32, eager; `per_item` in one process. "
        f"{machine(loading)}.",
    ]


def speed() -> list[str]:
    """Return how fast updates and environments are, and the verdicts on claims about speed."""
    updates, ladder, worlds = read("bench_update"), read("bench_ladder"), read("bench_env")
    teams: dict[int, dict[str, Any]] = {}
    for row in updates["rows"]:
        teams.setdefault(row["agents"], {})[row["setting"]] = row
    rungs = ladder_rows()
    by_rounds = "over_cached" in ladder["rows"][0]
    return [
        table(
            "agents | original program † (ms) | loop (ms) | batched (ms) | over loop | over cached | operators",
            "{loop[agents]} | {loop[original_ms]:.1f} | {loop[ms]:.1f} | {batched[ms]:.1f} | "
            "**{over_loop:.2f}x** | {over_cached} | {loop[ops]:,} / {batched[ops]:,}",
            [
                {
                    **team,
                    "over_loop": team["batched"].get("over_loop", team["batched"].get("batched_over_loop")),
                    "over_cached": times(team["batched"].get("over_cached"), ".2f"),
                }
                for team in teams.values()
            ],
        ),
        "The loop evaluates the actor of every agent again for each agent, in both phases of an update: with N agents "
        "2 N² times, where 2 N are enough. `cached` is the loop without that waste. "
        "† as it was measured once, on another machine: read it as a scale, not as a ratio. "
        f"Batch 128, hidden 256, float32, eager; medians of interleaved rounds: `uavlab bench update`. "
        f"{machine(updates)}.",
        table(
            "agents | loop (ms) | best in fp32 (ms) | best (ms) | batched over loop, over cached | "
            "best over loop, over cached | which is | fp32: share of its ceiling | warm-up repaid after",
            "{loop[agents]} | {loop[ms]:.1f} | {exact[ms]:.1f} | {best[ms]:.1f} | {batched} | "
            "**{best[over_loop]:.2f}x**, **{cached[1]:.2f}x** | {best[setting]} | {exact[share]:.0%} | {repaid}",
            rungs,
        ),
        f"`uavlab bench ladder`, one thread. {machine(ladder)}. The ceiling is the time of an update's matrix products "
        "alone, at the rate measured for their own shapes; compiling takes its time once. "
        + ("" if by_rounds else "Ratios over cached are those of median times: this record holds none by rounds. ")
        + "bfloat16 over float32, eager and compiled: "
        + "; ".join(f"{' and '.join(row['bf16'])} with {row['loop']['agents']} agents" for row in rungs)
        + ". A CPU without instructions for bfloat16 emulates it, slowly: `uavlab doctor` measures both, and `laptop` "
        "uses it only where the CPU has `amx_bf16`.",
        claims(),
        "`uavlab claims` shows all of them, each with the command that measures it again, and "
        "[notebooks/08_claims.ipynb](notebooks/08_claims.ipynb) draws them.",
        table(
            "`advance`, whole | agents | worlds | agent-steps per second",
            "{setting} | {agents} | {worlds} | {millions:.1f} million",
            [{**row, "millions": row["agent_steps_per_s"] / 1e6} for row in worlds["rows"]],
        ),
        f"`uavlab bench env`, one thread. {machine(worlds)}, torch {worlds['machine']['torch']}. "
        "How to re-make every record is in [CONTRIBUTING.md](CONTRIBUTING.md).",
    ]


def guard_cost(row: Mapping[str, Any]) -> str:
    """Return what the guard costs of an update, with its interval where the record holds one."""
    more = {key: 100 * (row[key] - 1) for key in ("guarded_over_plain", "low", "high") if key in row}
    ends = " [{low:.1f}, {high:.1f}]".format(**more) if "low" in more else ""
    return f"{more['guarded_over_plain']:.1f} %{ends} with {row['agents']} agents"


def proofs() -> list[str]:
    """Return the result of each proof, and how to run it again."""
    record = read("proofs")
    costs = " and ".join(map(guard_cost, read("bench_guard")["rows"]))
    rows = [{"name": name, **proof} for name, proof in sorted(record["figures"].items())]
    return [
        table("what | figure | command", "{name} | {figure} | `pytest {test}`", rows),
        f"The guard costs {costs}, of an update of `leader_follower_quick` on one thread: `uavlab bench guard`, "
        f"{machine(read('bench_guard'))}.",
        "The proofs ran on {cpu}, {cores} cores, torch {torch}, Python {python}; the "
        "commit of each figure stands in `figures/records/proofs.json`. How to run them all at once is in "
        "[CONTRIBUTING.md](CONTRIBUTING.md). Of n trials at random (kills, signals, damaged bytes, mutated settings), "
        "0 failures mean a true rate below 3/n, with 95 % confidence; of listed cases only that these passed.".format(
            **record["machine"]
        ),
    ]


def tables() -> list[str]:
    """Return all tables of the README with the sentences between them."""
    return [*followers(), *mapping(), *telemetry(), *speed()]


PARTS = {"README.md": tables, "RELIABILITY.md": proofs}


def block(name: str = "README.md") -> str:
    """Return the text of a file between its two marks."""
    begin, end = MARKS[name]
    return "\n\n".join([begin, *PARTS[name](), end])


def write(name: str) -> None:
    """Put a file's tables into it."""
    begin, end = MARKS[name]
    text = (ROOT / name).read_text(encoding="utf-8")
    (ROOT / name).write_text(text.split(begin)[0] + block(name) + text.split(end)[1], encoding="utf-8")


if __name__ == "__main__":
    for file in MARKS:
        if "--write" in sys.argv:
            write(file)
        else:
            print(block(file))
