"""Tables name methods, machines, commands and sources, for one seed and for several."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tools import tables
from tools.tables import peers, scale, scores, speed
from tools.tables import records as parts
from uavlab_lab.claims.ledger import select
from uavlab_lab.lessons import tour
from uavlab_lab.scaling import Load
from uavlab_lab.suites import mapping, update
from uavlab_lab.suites.scale import CLUSTERS, plan_row

DIRTY: set[str] = set()  # to be recorded anew; a name that is no longer needed fails, too
RECORDS = {  # those of a GPU are on a page of their own
    path.stem: json.loads(path.read_text(encoding="utf-8"))
    for path in parts.RECORDS.glob("*.json")
    if "nvidia" not in path.stem
}
HERE = {"cpu": "Here", "cpu_id": "model 1", "load": 0.5, "dirty": False}
RUN = {"command": "uavlab train a --seed 3 --out runs/a3 --json", "machine": HERE}
Change = Callable[[str, dict[str, Any]], None]


@pytest.fixture
def change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Change:
    """Copy the records; the function updates one of the copies."""
    folder = Path(shutil.copytree(parts.RECORDS, tmp_path / "records"))
    monkeypatch.setattr(parts, "RECORDS", folder)

    def update_one(name: str, values: dict[str, Any]) -> None:
        (folder / f"{name}.json").write_text(json.dumps({**parts.read(name), **values}), encoding="utf-8")

    return update_one


def figure(mean: float, **more: Any) -> dict[str, Any]:
    return {"mean": mean, "low": mean - 0.01, "high": mean + 0.01, **more}


def test_records_are_made_by_committed_code_on_one_thread() -> None:
    machines = {
        name: [
            part["machine"]
            for part in (record, *(record.get("trained") or []), *record.get("rows", []))
            if "machine" in part
        ]
        for name, record in RECORDS.items()
        if name not in ("literature", "proofs")
    }
    assert all(machines.values())
    dirty = {name for name, each in machines.items() if any(one["dirty"] for one in each)}
    assert dirty == DIRTY, "record the new ones again after a commit; take the others out of DIRTY"
    for one in (one for each in machines.values() for one in each):  # as the page says
        assert (one["threads"], one["system"][:5], one["python"][:5]) == (1, "Linux", "3.11."), one


class TestOverSeeds:
    def test_one_seed_is_as_recorded(self) -> None:
        assert parts.over_seeds([figure(0.5)]) == figure(0.5)

    @pytest.mark.parametrize("figures", [[figure(0.1), figure(0.2), figure(0.3)], [figure(0.2, each=[0.1, 0.2, 0.3])]])
    def test_several_get_students_interval(self, figures: list[dict[str, Any]]) -> None:
        """Standard deviation 0.1 of three: 4.3027 x 0.1 / sqrt(3)."""
        got = parts.over_seeds(figures)
        assert [got[key] for key in ("mean", "low", "high")] == pytest.approx(
            [0.2, 0.2 - 0.24841, 0.2 + 0.24841], abs=1e-5
        )

    def test_a_share_stays_one(self) -> None:
        got = parts.over_seeds([figure(0.99), figure(1.0)], 200)
        assert (got["mean"], got["high"]) == (pytest.approx(0.995), 1.0)
        alone = parts.over_seeds([figure(0.995)], 200)
        assert (alone["low"], alone["high"]) == pytest.approx((0.9725, 0.9999), abs=6e-5)

    def test_the_physics_term(self) -> None:
        """The five recorded differences: the bootstrap said +0.0018 to +0.0048."""
        change = scores.physics()
        assert (change["seeds"], f"{change['low']:+.4f}", f"{change['high']:+.4f}") == (5, "+0.0006", "+0.0057")


def test_the_headline_names_records_and_what_is_worse(change: Change) -> None:
    theirs = RECORDS["literature"]["leader_follower"]
    change("literature", {"leader_follower": {**theirs, "weights": {**theirs["weights"], "completion": 0.125}}})
    text = tables.block("README.md")
    assert "0.985 [0.972, 0.997] | 0.125, the published weights | [published_sampled](figures/records/" in text
    assert "completion better, energy worse" in text
    assert "25.6 ms: **4.34x** [4.31, 4.36] as fast | 110.8 ms, the usual loop" in text


def test_a_published_row_has_one_source() -> None:
    text = tables.block()
    assert "| published MASAC, its shipped weights measured | 0.848 | 0.29 | 256 | 391 | 208 |" in text
    assert "| published MASAC, figures of the paper | - | 0.32 | 265 | 454 | 294 |" in text


def test_the_bound_on_formation_is_for_as_many_steps_as_ours(change: Change) -> None:
    apart = RECORDS["formation_bound"]["apart"]
    change("formation_bound", {"apart": {**apart, "rooted": 56.0}})
    text = tables.block()
    assert "| no policy reaches more in as many steps | - | 0.75 | 224 | - | - |" in text
    assert "with a mean of 240 steps the bound is 0.77." in text


def test_constants_elsewhere_have_a_source() -> None:
    published = RECORDS["literature"]
    ours = {str(agents): ms for agents, ms in update.ORIGINAL_MS.items()}
    assert published["leader_follower"]["update"]["ms"] == ours
    assert published["mapping"]["training"]["s_per_300"] == mapping.ORIGINAL_STEP_S
    for row, theirs in (("weights", tour.MASAC), ("paper", tour.PAPER)):
        assert {name: published["leader_follower"][row][name] for name in theirs} == pytest.approx(theirs)
    assert all(row["title"] and row["source"] for task in published.values() for row in task.values())


def test_figures_outside_the_interval_are_better_or_worse() -> None:
    ours = {name: figure(mean) for name, mean in (("completion", 0.9), ("path", 5.0), ("energy", 1.0))}
    ours |= {"flight_time": figure(3.0), "seeds": "x"}
    theirs = {"title": "theirs", "completion": 0.8, "path": 5.005, "energy": 0.9, "flight_time": 4.0, "collision": 0.1}
    low = ["path", "energy", "flight_time"]
    rest = "energy worse, flight time better, path inside our interval"
    assert parts.against(ours, theirs, low) == f"completion better, {rest}"
    assert parts.against(ours, {**theirs, "completion": None}, low) == rest


class TestScored:
    """Where a policy was trained and scored, and by which commands."""

    def text(self, monkeypatch: pytest.MonkeyPatch, **changes: Any) -> str:
        command = "uavlab evaluate runs/a3 /x/a4 --episodes 5 --out figures/records/a.json"
        record = {"command": command, "machine": HERE, "trained": [RUN], **changes}
        monkeypatch.setattr(parts, "read", lambda name: record)
        return parts.scored("a")

    def test_machines_are_named_apart_where_they_differ(self, monkeypatch: pytest.MonkeyPatch) -> None:
        commands = "`uavlab train a --seed S`, `uavlab evaluate RUNS --episodes 5`."
        assert self.text(monkeypatch) == f"Trained and evaluated on Here, model 1: {commands}"
        there = self.text(monkeypatch, machine={"cpu": "There", "dirty": False})
        assert there == f"Trained on Here, model 1, evaluated on There: {commands}"

    def test_a_plan_is_not_trained(self, monkeypatch: pytest.MonkeyPatch) -> None:
        text = self.text(monkeypatch, command="uavlab evaluate a --policy sweep --out x.json", trained=[])
        assert text == "Evaluated on Here, model 1: `uavlab evaluate a --policy sweep`."

    def test_seeds_of_one_process_stay(self, monkeypatch: pytest.MonkeyPatch) -> None:
        run = {**RUN, "command": "uavlab train a --seed 0 --runs 5 --out /tmp/x"}
        assert "`uavlab train a --seed 0 --runs 5`, `uavlab evaluate" in self.text(monkeypatch, trained=[run])


@pytest.mark.parametrize(
    ("count", "title", "method"),
    [
        (1, "`mapping_quick` (COMA), 1 seed, 5 min of training", "over the episodes of the one seed"),
        (3, "`mapping_quick` (COMA), 3 seeds, 5 to 6 min of training", "Student's t over the means of training seeds"),
    ],
)
def test_captions_fit_one_seed_and_several(change: Change, count: int, title: str, method: str) -> None:
    row, run = RECORDS["mapping_quick"]["rows"][0], {**RECORDS["mapping_quick"]["trained"][0], "seeds": [0]}
    runs = [{**run, "seconds": 300.0 + 30 * seed} for seed in range(count)]
    for name in ("mapping_quick", "mapping_mappo"):
        change(name, {"rows": [row] * count, "trained": runs})
    score, caption = scores.maps()[:2]
    assert f"| {title} | 0." in score
    assert caption.startswith(f"Intervals: {method}. The same seed")
    assert "minutes do not compare" not in caption


def test_minutes_of_other_machines_do_not_compare(change: Change) -> None:
    run = RECORDS["mapping_mappo"]["trained"][0]
    change("mapping_mappo", {"trained": [{**run, "machine": {**run["machine"], "cpu": "another"}}]})
    assert scores.maps()[1].endswith("They trained on different machines, so their minutes do not compare.")


def test_ratios_have_their_intervals(change: Change) -> None:
    row = {**RECORDS["bench_maps"]["rows"][-1], "over_host": 9.5, "low": 1.25, "high": 18.75, "over_pool": 2.5}
    change("bench_maps", {"rows": [{**row, "low": 9.5, "high": 9.5}, row]})
    row = {**RECORDS["bench_missions"]["rows"][1], "over_plain": 3.5, "low": 1.25, "high": 8.75}
    change("bench_missions", {"rows": [row], "machine": {"cpu": "Xeon", "load": 0.05, "dirty": True}})
    maps, _, missions, caption = speed.missions()
    assert "| **9.5x** | 2.5x |" in maps
    assert "| **9.5x** [1.2, 18.8] | 2.5x |" in maps
    assert "| **3.50x** [1.25, 8.75] |" in missions
    assert "Xeon, load 0.05 before, by code that no commit holds." in caption


def test_the_cost_of_the_guard() -> None:
    row = {"agents": 2, "guarded_over_plain": 1.033, "low": 1.021, "high": 1.0449}
    assert speed.guard_cost(row) == "3.3 % [2.1, 4.5] with 2 agents"


def test_the_newest_claims_are_shown(change: Change) -> None:
    path = parts.RECORDS / "claims_new.json"
    path.write_text(json.dumps({**parts.newest_claims(), "date": "3000-01-01T00:00:00+00:00", "new": True}))
    assert parts.newest_claims()["new"]


def test_a_gpus_verdicts_are_beside_the_cpus(change: Change) -> None:
    record = parts.newest_claims()
    [claim] = select(["cached-forwards"])
    entry = {"value": 1.5, "low": 1.45, "high": 1.55, "note": "", "rounds": 6, "digest": claim.digest}
    gpu = {"machine": {**record["machine"], "device": "H200"}, "date": "3000-01-01", "measured": {claim.claim: entry}}
    (parts.RECORDS / "claims_h200.json").write_text(json.dumps(gpu))
    assert parts.newest_claims()["machine"] == record["machine"]  # a CPU's record remains the first
    table_of_claims, counts, _ = speed.claims()
    head, _, *lines = table_of_claims.splitlines()
    assert head.startswith("| claim | claimed | device | on the CPU | verdict | on H200 | verdict | on NVIDIA")
    [line] = [line for line in lines if line.startswith("| cached-forwards |")]
    assert "| not testable here | 1.50x | holds | - | not measured |" in line
    assert "90 not testable here" in counts  # one less than without it


class TestScale:
    """Tables of intervals, learning and devices, from records of their suites."""

    @pytest.fixture
    def records(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
        monkeypatch.setattr(parts, "RECORDS", tmp_path)

        def write(name: str, **values: Any) -> None:
            record = {"command": f"uavlab bench {name[6:]} --out x.json", "machine": HERE, **values}
            (tmp_path / f"{name}.json").write_text(json.dumps(record), encoding="utf-8")

        return write

    def test_before_they_are_made_there_is_none(self, records: Callable[..., None]) -> None:
        assert scale.parts() == []

    def test_intervals(self, records: Callable[..., None]) -> None:
        rows = [
            {
                "worlds": 16,
                "interval": k,
                "overlap": way,
                "step_ms": 3.0,
                **(
                    {"over_first": 1.5, "low": 1.4, "high": 1.6}
                    if way
                    else dict.fromkeys(("over_first", "low", "high"), 1.0)
                ),
                "rows_per_s": 9e3,
            }
            for way in (False, True)
            for k in (1, 5, 10, 20)
        ]
        waiting = [{"devices": 8, "interval": k, "gain": 1 + k / 100} for k in (1, 5, 10, 20)]
        wait = {"ranks": 2, "interval": 5, "update_ms": 15.26, "over_first": 1.2, "low": 1.1, "high": 1.3, "gain": 1.25}
        records("bench_interval", rows=rows, waiting=waiting, pace=1.0, ranks=[])
        assert len(scale.parts()) == 4
        records("bench_interval", rows=rows, waiting=waiting, pace=1.0, ranks=[wait])
        shown, text, model, _, ranks, _ = scale.parts()
        assert "| interval, 2 ranks here |" in ranks
        assert "| 5 | 15.3 | **1.20x** [1.10, 1.30] | 1.25x |" in ranks
        assert f"| 16 | beside updates |{4 * ' **1.50x** [1.40, 1.60] |'} 9,000 |" in shown
        assert "a step waits for 3.0 ms, 1 times what an update on 512 rows takes" in text
        assert "`uavlab bench interval`. Here, model 1, load 0.5 before." in text
        assert "| 8 | 1.01x | 1.05x | 1.10x | 1.20x |" in model
        records("bench_interval", rows=rows, waiting=waiting, pace=1.0, ranks=[wait, {**wait, "ranks": 4}])
        assert ["ranks here" in part for part in scale.parts()] == [False] * 4 + [True] * 2 + [False]

    def test_learning(self, records: Callable[..., None]) -> None:
        row = {
            **{"setting": "interval 10", "updates": 8000, "minutes": 3.25, "failed": "", "trained": {"machine": HERE}},
            **{"completion": {**figure(0.9), "each": [0.9, 0.9]}},
            "curve": [
                {"update": 4000, "seconds": 60.0, "each": {"completion": [0.96, 0.5]}},
                {"update": 6000, "seconds": 120.0, "each": {"completion": [0.2, 0.95]}},
            ],
        }
        never = {**row, "setting": "interval 20", "curve": row["curve"][:1]}
        records("bench_interval_learning", rows=[row, never, {**row, "failed": "DivergedError: no"}], goal=0.95)
        shown, text = scale.parts()
        assert "| interval 10 | 8,000 | 3.2 | 0.900 [" in shown
        assert shown.splitlines()[2].endswith("| 5,000 [-7,706, 17,706] | 1.5 [-4.9, 7.9] |")  # t of one degree: 12.706
        assert shown.splitlines()[3].endswith("| - | - |")
        assert len(shown.splitlines()) == 4
        assert text.startswith("2 seeds of each")

    def test_workers(self, records: Callable[..., None]) -> None:
        rows = [
            {"setting": "alternating", "ms": 20.0, "over_first": 1.0, "low": 1.0, "high": 1.0},
            {"setting": "overlap", "ms": 12.5, "over_first": 1.6, "low": 1.5, "high": 1.7},
        ]
        more = {"wait_s": 0.005, "worlds": 8, "workers": 4, "batch": 512, "environment_share": 0.6}
        scaling = [{"workers": 2, "worlds": 8, "steps_per_s": 1300.0, "of_ideal": 0.925}]
        records("bench_external", rows=rows, scaling=scaling, **more)
        shown, text, by_workers = scale.parts()
        assert shown.splitlines()[2:] == [
            "| alternating | 20.0 | **1.00x** |",
            "| overlap | 12.5 | **1.60x** [1.50, 1.70] |",
        ]
        assert "waits 5 ms" in text
        assert "60% of the time, so overlap can gain 1.67 times at most" in text  # 1 / 0.6
        assert by_workers.splitlines()[2] == "| 2 | 8 | 1,300 | 92% |"

    def test_ranks(self, records: Callable[..., None]) -> None:
        row = {"preset": "x", "ranks": 1, "cycles_per_s": 10.0, "agent_steps_per_s": 1280, "all_reduce_us": 0.0}
        one = {**row, "gradient_bytes": 148_488, "efficiency": {"mean": 1.0, "low": 1.0, "high": 1.0}}
        efficiency = {"mean": 0.7, "low": 0.6, "high": 0.8}
        two = {**one, "ranks": 2, "agent_steps_per_s": 1792, "efficiency": efficiency, "all_reduce_us": 1237.1}
        records("bench_ranks", rows=[one, two], machine={**HERE, "cores": 2})
        shown, text = scale.parts()
        assert shown.splitlines()[2] == "| x | 1 | 10.0 | 1,280 | 1.00 [1.00, 1.00] | 0 | 0 |"
        assert shown.splitlines()[3] == "| x | 2 | 10.0 | 1,792 | 0.70 [0.60, 0.80] | 148 | 1,237 |"
        assert text.startswith("Ranks by gloo on 2 cores")

    def test_learning_beside_another_program(self, records: Callable[..., None]) -> None:
        assert peers.learning() == []
        rows = [
            {"program": name, "seed": 3, "seconds": seconds, "curve": [[1.0, 0.5]] * count, "machine": HERE}
            for name, seconds, count in (("uavlab", 10.0, 4), ("BenchMARL", 25.0, 5))
        ]
        sizes = RECORDS["peers_learning"]["sizes"]
        rest = {name: RECORDS["peers_learning"][name] for name in ("programs", "differences", "goal")}
        records("peers_learning", rows=rows, sizes={**sizes, "iterations": 10}, **rest)
        shown, text, _ = peers.learning()
        assert shown.splitlines()[2:] == ["| 3 | 10.0 | 40 | 25.0 | 50 | 2.5x |"]
        assert "1 seeds show an order, not a factor" in text

    def test_devices(self, records: Callable[..., None]) -> None:
        load = Load(0.018, collect_s=0.002, gradient_bytes=8e6)
        rows = [plan_row("x", load, name, *each) for name, each in CLUSTERS.items()]
        records("bench_scale", rows=rows)
        shown, text = scale.parts()
        assert all(name in shown.splitlines()[0] for name in CLUSTERS)
        gains = " | ".join(f"{row['gain']:,.1f}x" for row in rows)
        assert shown.splitlines()[2] == f"| x | 20.0 | 2.0 | 8.00 | 1 | {gains} |"
        assert text.startswith("By a model, not measured")
