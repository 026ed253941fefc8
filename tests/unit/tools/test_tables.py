"""Tables name their methods and sources, and read the records that stand as well as those that will."""

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from tools import tables

DIRTY = {"bench_telemetry"}  # to be recorded anew; a name that is no longer needed fails, too
RECORDS = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in tables.RECORDS.glob("*.json")}


def figure(mean: float, **more: Any) -> dict[str, Any]:
    return {"mean": mean, "low": mean - 0.01, "high": mean + 0.01, **more}


def test_records_are_made_by_committed_code() -> None:
    parts = {name: [record, *(record.get("trained") or [])] for name, record in RECORDS.items()}
    dirty = {name for name, each in parts.items() if any(part.get("machine", {}).get("dirty") for part in each)}
    assert dirty == DIRTY, "record the new ones again after a commit; take the others out of DIRTY"


class TestOverSeeds:
    def test_one_seed_is_as_recorded(self) -> None:
        assert tables.over_seeds([figure(0.5)]) == figure(0.5)

    @pytest.mark.parametrize("figures", [[figure(0.1), figure(0.2), figure(0.3)], [figure(0.2, each=[0.1, 0.2, 0.3])]])
    def test_several_get_students_interval(self, figures: list[dict[str, Any]]) -> None:
        """Standard deviation 0.1 of three: 4.3027 x 0.1 / sqrt(3)."""
        got = tables.over_seeds(figures)
        assert [got[key] for key in ("mean", "low", "high")] == pytest.approx(
            [0.2, 0.2 - 0.24841, 0.2 + 0.24841], abs=1e-5
        )

    def test_a_share_stays_one(self) -> None:
        got = tables.over_seeds([figure(0.99), figure(1.0)], 200)
        assert (got["mean"], got["high"]) == (pytest.approx(0.995), 1.0)
        alone = tables.over_seeds([figure(0.995)], 200)
        assert (alone["low"], alone["high"]) == pytest.approx((0.9725, 0.9999), abs=6e-5)

    def test_the_physics_term(self) -> None:
        """The five recorded differences: the bootstrap said +0.0018 to +0.0048."""
        change = tables.physics()
        assert (change["seeds"], f"{change['low']:+.4f}", f"{change['high']:+.4f}") == (5, "+0.0006", "+0.0057")


def test_a_published_row_has_one_source() -> None:
    text = tables.block()
    assert "| published MASAC, its shipped weights measured | 0.848 | 0.29 | 256 | 391 | 208 |" in text
    assert "| published MASAC, figures of the paper | - | 0.32 | 265 | 454 | 294 |" in text


def test_whether_ours_is_better_is_read_from_the_interval() -> None:
    ours = {
        "completion": figure(0.9),
        "path": figure(5.0),
        "energy": figure(1.0),
        "flight_time": figure(3.0),
        "seeds": "x",
    }
    theirs = {"title": "theirs", "completion": 0.8, "path": 5.005, "energy": 0.9, "flight_time": 4.0, "collision": 0.1}
    text = tables.against(ours, theirs, ["path", "energy", "flight_time"])
    assert text == "completion better, energy worse, flight time better, path no different"


class TestRecordsToCome:
    """What the suites return now, and as many seeds as CONTRIBUTING trains."""

    @pytest.fixture
    def records(self, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
        records = deepcopy(RECORDS)
        monkeypatch.setattr(tables, "read", records.__getitem__)
        return records

    def test_five_seeds_and_three(self, records: dict[str, Any]) -> None:
        for name, count in (("published_sampled", 5), ("published_mean", 5), ("mapping_quick", 3)):
            row, run = records[name]["rows"][0], {**records[name]["trained"][0], "seeds": [0]}
            runs = [{**run, "seconds": 300.0 + 30 * seed} for seed in range(count)]
            records[name] |= {"rows": [row] * count, "trained": runs}
        text = tables.block()
        assert "| ours, 5 seeds, sampled actions, 5 to 7 min of training | 0.9" in text
        assert "| `mapping_quick`, 3 seeds, 5 to 6 min of training | 0." in text
        assert "over the episodes of the one seed" not in text

    def test_both_references_and_a_named_machine(self, records: dict[str, Any]) -> None:
        records["bench_update"]["rows"] = [
            {**records["bench_update"]["rows"][2 * n], **{"setting": kind, "over_loop": 4.5, "over_cached": 3.25}}
            for n in range(3)
            for kind in ("loop", "cached", "batched")
        ]
        for row in records["bench_ladder"]["rows"]:
            row["over_cached"] = 7.75
        for row in records["bench_maps"]["rows"]:
            row["over_pool"] = 9.5
        for row in records["bench_missions"]["rows"]:
            row |= {"over_plain": 3.5, "low": 1.25, "high": 8.75}
        records["bench_missions"]["rounds"] = 10
        records["bench_update"]["machine"] |= {
            "cpu": "Xeon",
            "cpu_id": "family 6 model 143 stepping 8",
            "load": 0.05,
            "dirty": True,
        }
        text = tables.block()
        assert "| **4.50x** | 3.25x |" in text
        assert "**7.75x** |" in text
        assert "| 9.5x |" in text
        assert "3.5x [1.2, 8.8]" in text
        assert "Xeon, family 6 model 143 stepping 8, load 0.05 before, by code that no commit holds" in text
        for note in ("too few for an interval", "that of median times", "computed some maps twice"):
            assert note not in text


def test_the_cost_of_the_guard() -> None:
    row = {"agents": 2, "guarded_over_plain": 1.033}
    assert tables.guard_cost(row) == "3.3 % with 2 agents"
    assert tables.guard_cost({**row, "low": 1.021, "high": 1.0449}) == "3.3 % [2.1, 4.5] with 2 agents"


def test_what_the_present_records_lack_is_said() -> None:
    text = tables.block()
    ladder = RECORDS["bench_ladder"]["rows"][0]
    assert ("those of median times" in text) is ("over_cached" not in ladder)
    assert ("computed some maps twice" in text) is ("over_pool" not in RECORDS["bench_maps"]["rows"][0])
    rungs = [(row["loop"]["agents"], row["best"]["threads"]) for row in tables.ladder_rows()]
    assert rungs == [(2, 1), (4, 1), (8, 1)]  # two threads were recorded on a busy machine


def test_records_are_read_from_their_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "RECORDS", tmp_path)
    (tmp_path / "one.json").write_text('{"rows": []}')
    assert tables.read("one") == {"rows": []}
