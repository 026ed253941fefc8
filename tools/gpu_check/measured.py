"""The groups of parts 1 and 2, which measure: what they find is written into records of their own, each at once.

On a CPU, for a dry run of the tool, everything is small.
"""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tools.gpu_check.relations import contradictions
from tools.gpu_check.worker import COMMAND, Case, NotTried, Result, group, machine

ROUNDS = 12  # of which an interval is made
TEAMS = (8, 2, 4)  # agents, the most valuable teams first
SMALL = {"hidden": 8, "batch": 8, "learning_starts": 16, "capacity": 128}  # of a dry run
PPO = {"learner": "mappo", "followers": 4, "worlds": 1024, "rollout_steps": 32, "epochs": 4, "minibatches": 4}
SMALL_PPO = {**PPO, "worlds": 4, "rollout_steps": 4, "epochs": 2, "minibatches": 2, "hidden": 8}
FORMS = {f"graph={graph}": {"graph": graph} for graph in ("off", "update", "cycle")}
COMPILED = {
    "graph=cycle": FORMS["graph=cycle"],
    "compile=default, graph=cycle": {"compile": "default", "graph": "cycle"},
}
SETS = ("gpu with graph=cycle", "gpu", "max")
GOAL = 0.9  # of flights completed
LONG = {  # suites
    "learning": "trains ten whole runs",
    "learners": "trains for hours",
    "curriculum": "trains for hours",
}


def own_record(folder: Path, name: str, device: str) -> Path:
    return folder / f"{name}_{machine(device)[1]}.json"


def write(path: Path, record: dict[str, Any], key: str = "") -> str:
    """Write a record, with what contradicts itself in it; return how many rows it has.

    Rows of an earlier record of the same code stay where the new ones have another value of ``key``.
    """
    from uavlab.storage.files import write_json

    rows = list(record["rows"])
    if key and path.exists():
        before, new = json.loads(path.read_text(encoding="utf-8")), {row[key] for row in rows}
        if before["machine"]["code"] == record["machine"]["code"]:
            rows = [row for row in before["rows"] if row[key] not in new] + rows
    rows.sort(key=lambda row: row.get("agents", 0))
    wrong = contradictions(record["suite"], rows)
    write_json(path, {"command": COMMAND, **record, "rows": rows, "contradictions": wrong})
    return f"{len(rows)} rows in {path.name}" + f", {len(wrong)} contradictions" * bool(wrong)


def own_suite(name: str, rows: Sequence[Any], sizes: Any, rounds: int, device: str) -> dict[str, Any]:
    """Return a record of this tool in the form of those of ``uavlab bench``."""
    return {"suite": name, "rounds": rounds, "machine": machine(device)[0], "sizes": dict(sizes), "rows": list(rows)}


def ladder_rungs(device: str, agents: int) -> dict[str, Any]:
    """Return the rungs of the ladder; in a dry run one that compiles is enough, with the smallest team."""
    from uavlab_lab.suites.update import RUNGS

    left_out = () if device == "cuda" else ("bf16",) if agents == min(TEAMS) else ("bf16", "compiled")
    return {name: rung for name, rung in RUNGS.items() if not any(word in name for word in left_out)}


def measured_ladder(device: str, folder: Path, agents: int) -> str:
    from uavlab.benchmarks import suites
    from uavlab_lab.suites.update import SIZES

    sizes = SIZES if device == "cuda" else {**SIZES, **SMALL}
    options = {"threads": [1], "teams": [agents], "cache": True, "rungs": ladder_rungs(device, agents), "sizes": sizes}
    record = suites()["ladder"].run(ROUNDS if device == "cuda" else 3, device, **options)
    return write(own_record(folder, "bench_ladder", device), {"cache": True, **record}, "agents")


def compiled_rung(device: str, agents: int, rung: dict[str, Any]) -> Result:
    """Compile an update, for another process that finds its code."""
    from uavlab.experiment.config import configure
    from uavlab.runtime.toggles import Toggles, as_dict
    from uavlab_lab.measure.compare import prepare
    from uavlab_lab.suites.update import SIZES

    sizes = SIZES if device == "cuda" else {**SIZES, **SMALL}
    layer = {**as_dict(Toggles()), **sizes, "followers": agents - 1, "device": device, "threads": 1}
    (one,) = prepare({"": configure("leader_follower", layer, rung)}, "update").values()
    return f"{one.first_s:.0f} s", one.rt.fell_back


def claim_bench(device: str, rounds: int) -> Any:
    """Return the bench of the claims, in a dry run with small sizes, which test none of them."""
    from uavlab_lab.claims.measures import Bench

    return Bench(rounds, device=device, **({} if device == "cuda" else SMALL))


def claims_in_order() -> list[Any]:
    """Return the claims that can be measured: first those that a GPU can decide, then other GPU's, then a CPU's."""
    from uavlab_lab.claims.ledger import select
    from uavlab_lab.claims.report import COUNTED, MEASURES, of_this_program

    def rank(claim: Any) -> tuple[bool, ...]:
        decides = claim.standing == "judged" and (claim.subject == "technique" or of_this_program(claim))
        return claim.device == "cpu", not decides, bool(claim.only), "preset: mapping" in claim.arguments

    measured = MEASURES.keys() - set(COUNTED)
    return sorted((claim for claim in select() if claim.measure in measured), key=rank)


def compiled_by(claim: Any) -> str:
    """Return what a claim compiles, equal for those that compile the same; empty if nothing."""
    words = ("compiled_networks", "compile: ", "stage: 3", "stage: chosen", "agents: 4", "growth", "preset")
    text = f"{claim.measure} {claim.arguments}"
    have = [word for word in words if word in text]
    return ", ".join(have) if any("compile" in word or "stage" in word for word in have) else ""


@group(12, "compilation of part 1, side by side, for the groups that are timed", part=1, anew=True)
def compile_claims(device: str, folder: Path) -> Iterator[Case]:
    """Yield the compiled rungs of the ladder, and one of each kind of claim that compiles."""
    from uavlab_lab.claims.report import measure_claim
    from uavlab_lab.suites.update import ON_CUDA

    for agents in TEAMS:
        rungs = {**ladder_rungs(device, agents), **(ON_CUDA if device == "cuda" else {})}
        for name, rung in rungs.items():
            if rung.get("compile", "off") != "off":
                yield Case(f"{name}, {agents} agents", partial(compiled_rung, device, agents, rung), 240, slow=True)
    different = {compiled_by(claim): claim for claim in reversed(claims_in_order()) if compiled_by(claim)}
    for claim in different.values():

        def measured(claim: Any = claim) -> str:
            return f"{measure_claim(claim, claim_bench(device, 3)).value:.3g} with other processes beside it"

        yield Case(f"claim {claim.claim}", measured, 240, slow=True)


@group(12, "bench ladder: each rung of the update, with graphs and compiled", part=1, timed=True)
def ladder(device: str, folder: Path) -> Iterator[Case]:
    for agents in TEAMS:
        yield Case(f"{agents} agents", partial(measured_ladder, device, folder, agents), 180, slow=True)


@group(20, "all claims, each with its verdict in claims_<gpu>.json", part=1, timed=True)
def claims(device: str, folder: Path) -> Iterator[Case]:
    from uavlab_lab.claims import report

    path, table = own_record(folder, "claims", device), claim_bench(device, 6 if device == "cuda" else 3)

    def judged(claim: Any) -> str:
        record = report.measure([claim], path, table, lambda line: None)
        entry = record["measured"][claim.claim]
        if entry["value"] is None:
            raise NotTried(entry["note"])
        return f"{report.format_number(entry['value'], claim.unit)}, {report.verdict(claim, record)}; {entry['note']}"[
            :200
        ]

    for claim in claims_in_order():
        yield Case(claim.claim, partial(judged, claim), 60 if device == "cuda" else 10, slow=True)


@group(8, "compilation of part 2, side by side", part=2, anew=True)
def compile_runs(device: str, folder: Path) -> Iterator[Case]:
    from uavlab.benchmarks import suites

    def worlds() -> str:
        return f"{len(suites()['env'].run(3, device)['rows'])} rows with other processes beside them"

    yield Case("worlds", worlds, 200, slow=True)
    yield Case("ppo", lambda: ppo_rows(device, COMPILED, 3)[1]["setting"], 200, slow=True)
    yield Case("team", lambda: str(team_row(device, "max", updates=20)["updates"]), 200, slow=True)


def suite_case(device: str, folder: Path, name: str, rounds: int) -> Callable[[], str]:
    """Return a case that measures a suite and writes its record."""
    from uavlab.benchmarks import suites

    def measured() -> str:
        if name in LONG:
            raise NotTried(f"{LONG[name]}: uavlab bench {name}")
        return write(own_record(folder, f"bench_{name}", device), suites()[name].run(rounds, device))

    return measured


@group(6, "bench env and bench replay", part=2, timed=True)
def env_and_replay(device: str, folder: Path) -> Iterator[Case]:
    for name in ("env", "replay"):
        rounds = 2 * ROUNDS if device == "cuda" else 3
        yield Case(f"bench {name}", suite_case(device, folder, name, rounds), 200, slow=True)


def ppo_rows(device: str, forms: dict[str, Any], rounds: int) -> list[dict[str, Any]]:
    """Time iterations of PPO, acting and all passes over its rows, and count agent-steps a second."""
    from uavlab_lab.measure.compare import compare

    sizes = PPO if device == "cuda" else SMALL_PPO
    rows = compare("leader_follower", forms, {**sizes, "device": device}, call="cycle", rounds=rounds, enough_s=60)
    steps = sizes["worlds"] * sizes["rollout_steps"] * (sizes["followers"] + 1)
    return [{**row, "agent_steps": steps, "agent_steps_per_s": round(1e3 * steps / row["ms"])} for row in rows]


@group(6, "an iteration of PPO at a real size, with learning", part=2, timed=True)
def ppo(device: str, folder: Path) -> Iterator[Case]:
    def measured(forms: dict[str, Any]) -> str:
        rows = ppo_rows(device, forms, ROUNDS)
        record = own_suite("ppo", rows, PPO if device == "cuda" else SMALL_PPO, ROUNDS, device)
        return write(own_record(folder, "bench_ppo", device), record, "setting")

    yield Case("graphs", partial(measured, FORMS), 150, slow=True)
    yield Case("compiled", partial(measured, COMPILED), 150, slow=True)


def team_row(device: str, name: str, updates: int | None = None) -> dict[str, Any]:
    """Train a team until it completes ``GOAL`` of its flights; return after how many updates and seconds it does."""
    import torch

    from uavlab.experiment.config import configure
    from uavlab.experiment.run import Run
    from uavlab.runtime.toggles import toggle_presets

    toggles = toggle_presets(torch.device(device))[name.partition(" ")[0]]
    more = {"graph": "cycle"} if name.endswith("graph=cycle") else {}
    small = {} if device == "cuda" else {"updates": 20, "evaluate_every": 10, "evaluate_episodes": 4, "log_every": 10}
    limit = {"updates": updates} if updates else {}
    run = Run(configure("leader_follower_quick", {"device": device}, toggles, more, small, limit))
    began, best, reached = time.perf_counter(), 0.0, None
    for progress in run.train():
        best = max(best, (progress.score or {}).get("completion", 0.0))
        if best >= GOAL:
            reached = round(time.perf_counter() - began, 2)
            break
    seconds = {
        "seconds_to_goal": reached,
        "training_s": round(run.seconds, 2),
        "scoring_s": round(run.score_seconds, 2),
    }
    return {"setting": name, "updates": run.number, "completion": best, **seconds, "fell_back": run.rt.fell_back}


@group(10, f"a team of leader_follower_quick that trains until it completes {GOAL} of its flights", part=2, timed=True)
def team(device: str, folder: Path) -> Iterator[Case]:
    from uavlab.experiment.config import configure

    names = ("worlds", "batch", "hidden", "followers", "interval", "ratio", "evaluate_every", "evaluate_episodes")
    values = configure("leader_follower_quick").values

    def trained(name: str) -> Result:
        row = team_row(device, name)
        record = own_suite("team", [row], {each: values[each] for each in names}, 1, device)
        where = write(own_record(folder, "bench_team", device), record, "setting")
        goal = f"{row['seconds_to_goal']} s" if row["seconds_to_goal"] else f"never, best {row['completion']:.2f}"
        return f"{goal} to {GOAL}, {row['updates']} updates; {where}", row["fell_back"]

    for name in SETS:
        yield Case(name, partial(trained, name), 150, slow=True)


@group(14, "the other suites of uavlab bench, a few rounds; the records lie beside this one", timed=True)
def bench(device: str, folder: Path) -> Iterator[Case]:
    from uavlab.benchmarks import suites

    first = ("ranks", "telemetry", "maps", "interval")
    for name in sorted(suites().keys() - {"ladder", "env", "replay"}, key=lambda name: name not in first):
        yield Case(name, suite_case(device, folder, name, 3), 120, slow=True)
