"""Figures of tables, computed by hand; that pages hold what records say is in ``tests/unit/test_readme.py``."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tools import tables
from tools.tables import figures
from tools.tables import records as parts
from uavlab_lab.claims.ledger import select
from uavlab_lab.lessons import tour
from uavlab_lab.suites import mapping, update

RECORDS = {  # those of a GPU are on a page of their own
    path.stem: json.loads(path.read_text(encoding="utf-8"))
    for path in parts.RECORDS.glob("*.json")
    if "nvidia" not in path.stem
}
HERE = {"cpu": "Here", "cpu_id": "model 1", "load": 0.5, "dirty": False}
RUN = {"command": "uavlab train a --seed 3 --out runs/a3 --json", "machine": HERE}
Change = Callable[..., None]


@pytest.fixture
def change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Change:
    """Copy the records; the function updates one of the copies."""
    folder = Path(shutil.copytree(parts.RECORDS, tmp_path / "records"))
    monkeypatch.setattr(parts, "RECORDS", folder)

    def update_one(name: str, **values: Any) -> None:
        (folder / f"{name}.json").write_text(json.dumps({**parts.read(name), **values}), encoding="utf-8")

    return update_one


def figure(mean: float, **more: Any) -> dict[str, Any]:
    return {"mean": mean, "low": mean - 0.01, "high": mean + 0.01, **more}


def test_records_are_made_by_committed_code_on_one_thread() -> None:
    for name in RECORDS.keys() - {"literature", "proofs"}:
        record = RECORDS[name]
        each = [record, *(record.get("trained") or []), *record.get("rows", [])]
        machines = [part["machine"] for part in each if "machine" in part]
        assert machines, name
        for one in machines:  # as the page says
            known = (one["dirty"], one["threads"], one["system"][:5], one["python"][:5])
            assert known == (False, 1, "Linux", "3.11."), name


def test_one_seed_is_as_recorded_and_several_get_students_interval() -> None:
    """Standard deviation 0.1 of three: 4.3027 x 0.1 / sqrt(3)."""
    assert parts.over_seeds([figure(0.5)]) == figure(0.5)
    for each in ([figure(0.1), figure(0.2), figure(0.3)], [figure(0.2, each=[0.1, 0.2, 0.3])]):
        got = parts.over_seeds(each)
        assert [got[key] for key in ("mean", "low", "high")] == pytest.approx([0.2, -0.04841, 0.44841], abs=1e-5)
    share = parts.over_seeds([figure(0.99), figure(1.0)], 200)
    assert (share["mean"], share["high"]) == (pytest.approx(0.995), 1.0)
    alone = parts.over_seeds([figure(0.995)], 200)
    assert (alone["low"], alone["high"]) == pytest.approx((0.9725, 0.9999), abs=6e-5)


def test_figures_in_words() -> None:
    row = {"over": 1.5, "low": 1.25, "high": 1.75}
    assert parts.speed_up(row, "over", ".1f") == "**1.5x** [1.2, 1.8]"
    assert parts.speed_up({**row, "low": 1.5, "high": 1.5}, "over") == "**1.50x**"
    assert parts.extra({"cost": 1.033, "low": 1.021, "high": 1.0449}, "cost") == "3.3 % [2.1, 4.5]"
    assert parts.interval(figure(-0.1), "+.3f") == "-0.100 [-0.110, -0.090]"
    assert parts.interval(None, ".3f") == parts.f(None, ".3f") == "-"
    assert (
        parts.intervals({"a": figure(0.5), "b": figure(2)}, {"a": ".2f", "b": ".0f"}) == "0.50 [0.49, 0.51] | 2 [2, 2]"
    )
    assert parts.machine({"cpu": "Xeon", "load": 0.05, "dirty": True}) == (
        "Xeon, load 0.05 before, by code that no commit holds"
    )
    assert parts.listed_machines([HERE, {**HERE, "load": 2}]) == "Here, model 1 (load 0.5 to 2 before a run)"
    rows = [{"seed": seed, "name": name} for seed in (1, 0) for name in "ab"]
    assert parts.grouped(rows, "seed") == [(1, rows[:2]), (0, rows[2:])]
    assert parts.pivot(rows, "name", "seed") == {"a": {1: rows[0], 0: rows[2]}, "b": {1: rows[1], 0: rows[3]}}


def test_figures_outside_the_interval_are_better_or_worse() -> None:
    ours = {name: figure(mean) for name, mean in (("completion", 0.9), ("path", 5.0), ("energy", 1.0))}
    ours |= {"flight_time": figure(3.0), "seeds": "x"}
    theirs = {"title": "theirs", "completion": 0.8, "path": 5.005, "energy": 0.9, "flight_time": 4.0, "collision": 0.1}
    low = ["path", "energy", "flight_time"]
    rest = "energy worse, flight time better, path inside our interval"
    assert parts.against(ours, theirs, low) == f"completion better, {rest}"
    assert parts.against(ours, {**theirs, "completion": None}, low) == rest


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({}, "Trained and evaluated on Here, model 1: `uavlab train a --seed S`, `uavlab evaluate RUNS --episodes 5`."),
        ({"machine": {"cpu": "There", "dirty": False}}, "Trained on Here, model 1, evaluated on There: `"),
        ({"trained": []}, "Evaluated on Here, model 1: `uavlab evaluate RUNS --episodes 5`."),
        ({"trained": [{**RUN, "command": "uavlab train a --seed 0 --runs 5 --out /x"}]}, "train a --seed 0 --runs 5`"),
    ],
)
def test_machines_and_commands_of_scores(changes: dict[str, Any], text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    command = "uavlab evaluate runs/a3 /x/a4 --episodes 5 --out figures/records/a.json"
    record = {"command": command, "machine": HERE, "trained": [RUN], **changes}
    monkeypatch.setattr(parts, "read", lambda name: record)
    assert text in parts.scored(["a"])


def test_the_physics_term() -> None:
    """The five recorded differences: the bootstrap said +0.0018 to +0.0048."""
    change = figures.physics()
    assert (change["seeds"], parts.interval(change["change"], "+.4f")) == (5, "+0.0032 [+0.0006, +0.0057]")


def test_stages_are_means_over_the_seeds() -> None:
    def record(add: float) -> dict[str, Any]:
        """Return a record of two stages, whose figures are larger by ``add``."""
        over = {"greedy": {"completion": figure(1.0 + add), "distance": figure(0.7 + add)}}
        row = {"score": figure(0.5 + add), "ratio": figure(0.8 + add), "plans": {"greedy": figure(0.4)}, "over": over}
        return {"rows": [{"stage": 1, "settings": {"uavs": [2, 3]}, **row}, {"stage": 2, "settings": {}, **row}]}

    first, second = figures.stages([record(0.1 * seed) for seed in range(3)])
    shown = [parts.interval(first[key], ".2f") for key in ("score", "completion", "distance", "ratio")]
    assert shown == ["0.60 [0.35, 0.85]", "1.10 [0.85, 1.35]", "0.80 [0.55, 1.05]", "0.90 [0.65, 1.15]"]
    assert (list(first["uavs"]), list(second["uavs"]), list(first["targets"])) == ([2, 3], [15, 20], [10, 15])


def test_shares_of_the_way_and_meetings() -> None:
    assert figures.way_of_return({"returns": {"random": -9, "best": 0, "plan": 3}}) == "0.75"
    meetings = [
        {
            "players": {"chasers": own, "runners": other},
            "scores": {"chasers": figure(10 * a - b), "runners": figure(b - 10 * a)},
        }
        for a, own in enumerate(("early", "late"))
        for b, other in enumerate(("early", "late"))
    ]
    assert figures.met({"meetings": meetings}, "chasers", "late", "early") == "10.00"
    assert figures.met({"meetings": meetings}, "runners", "late", "early") == "1.00"


def test_a_goal_is_reached_by_all_seeds_or_by_none() -> None:
    """Seeds at 4000 and 6000: t of one degree is 12.706, the standard error 1000."""
    curve = [
        {"update": 4000, "each": {"completion": [0.96, 0.5]}},
        {"update": 6000, "each": {"completion": [0.2, 0.95]}},
    ]
    mean = figures.reached(0.95, {"curve": curve}, "update", 1)
    assert parts.interval(mean, ",.0f") == "5,000 [-7,706, 17,706]"
    assert figures.reached(0.95, {"curve": curve[:1]}, "update", 1) is None


def test_what_a_page_computes(change: Change) -> None:
    change("formation_bound", apart={**RECORDS["formation_bound"]["apart"], "rooted": 56.0})
    change("bench_external", environment_share=0.6)
    change("mapping_mappo", trained=[{**run, "machine": HERE} for run in RECORDS["mapping_mappo"]["trained"]])
    rows = [
        {"program": name, "seed": 3, "seconds": seconds, "curve": [[1.0, 0.5]] * count, "machine": HERE}
        for name, seconds, count in (("uavlab", 10.0, 4), ("BenchMARL", 25.0, 5))
    ]
    change("peers_learning", rows=rows)
    load = {"raw_bytes": 200, "bytes": 50}
    change("bench_telemetry", rows=[{**RECORDS["bench_telemetry"]["rows"][0], **load}])
    text = tables.block()
    assert "| no policy reaches more in as many steps | - | 0.75 | 224 | - | - |" in text  # 1 - 56 / 223.6
    assert "with a mean of 240 steps the bound is 0.77." in text
    assert "60% of the time, so overlap can gain 1.67 times at most" in text
    assert "They trained on different machines, so their minutes do not compare." in text
    assert "| 3 | 10.0 | 40 | 25.0 | 50 | 2.5x |" in text
    assert "| 98% [98%, 99%] | 0.25 |" in text
    assert "| published MASAC, its shipped weights measured | 0.848 | 0.29 | 256 | 391 | 208 |" in text


def test_a_gpus_verdicts_are_beside_the_cpus(change: Change) -> None:
    record, [claim] = parts.newest_claims(), select(["cached-forwards"])
    entry = {"value": 1.5, "low": 1.45, "high": 1.55, "note": "", "rounds": 6, "digest": claim.digest}
    gpu = {"machine": {**record["machine"], "device": "H200"}, "date": "3000-01-01", "measured": {claim.claim: entry}}
    (parts.RECORDS / "claims_h200.json").write_text(json.dumps(gpu))
    newest = parts.newest_claims()
    assert (newest["machine"], newest["others"][0]["machine"]["device"]) == (record["machine"], "H200")
    [cells] = figures.claims_of(newest, ["cached-forwards"])
    assert cells[4:7] == ["not testable here", "1.50x", "holds"]
    assert "90 not testable here" in figures.verdicts(newest)  # one less than without it


def test_constants_elsewhere_have_a_source() -> None:
    published = RECORDS["literature"]
    ours = {str(agents): ms for agents, ms in update.ORIGINAL_MS.items()}
    assert published["leader_follower"]["update"]["ms"] == ours
    assert published["mapping"]["training"]["s_per_300"] == mapping.ORIGINAL_STEP_S
    for row, theirs in (("weights", tour.MASAC), ("paper", tour.PAPER)):
        assert {name: published["leader_follower"][row][name] for name in theirs} == pytest.approx(theirs)
    assert all(row["title"] and row["source"] for task in published.values() for row in task.values())
