"""What is drawn is what was told; equations hold at the truth and notice what is told wrongly; paces are by hand."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.tiny import sizes
from uavlab.app import telling
from uavlab.app.kept import Kept
from uavlab.app.telling import COLUMNS, Told
from uavlab.data import telemetry
from uavlab.data.telemetry import Series
from uavlab.lab import hidden
from uavlab.windows import fleet
from uavlab.windows.task import Telemetry


@pytest.fixture(scope="module")
def tells() -> Kept:
    small = {name: value for name, value in sizes("telemetry").items() if name not in ("updates", "flights")}
    found, name = hidden.learned("", 2, 14, **{**small, "evaluate_every": 2})
    assert name == "trained for 2 updates only"
    return found


@pytest.fixture(scope="module")
def flight(tells: Kept) -> Series:
    return hidden.unseen(tells)


@pytest.fixture(scope="module")
def told(tells: Kept, flight: Series) -> Told:
    return telling.of(tells, flight, stride=10)


class TestUnseen:
    def test_is_a_test_flight_by_itself(self, tells: Kept, flight: Series) -> None:
        task = tells.config.env
        _, _, test = telemetry.split(task.flights, (task.training, task.validation), task.split)
        [flown] = list(fleet.flown(task))
        torch.testing.assert_close(flight.inputs, telemetry.features(flown[min(test)]))
        assert flight.bounds.tolist() == [0, len(flight.inputs)]

    def test_another(self, tells: Kept, flight: Series) -> None:
        assert not torch.equal(hidden.unseen(tells, 1).truth[0], flight.truth[0])


class TestDrawn:
    def test_all_columns(self, told: Told) -> None:
        figure = hidden.drawn(told, title="A flight")
        assert [trace.name for trace in figure.data] == ["90 %", "told", "truth"] * len(COLUMNS)
        band, said, truth = figure.data[3:6]
        assert list(said.y) == pytest.approx(told.said[:, 1].tolist(), rel=1e-5)
        assert list(truth.y) == pytest.approx(told.truth[:, 1].tolist(), rel=1e-5)
        wide = (max(band.y) - max(said.y)) / told.doubt[1].item()
        assert wide == pytest.approx(1.645, rel=1e-4)
        assert figure.layout.annotations[1].text == "wind east (m/s)"

    def test_some_columns_without_truth(self, told: Told) -> None:
        blind = replace(told, truth=torch.full_like(told.truth, torch.nan))
        figure = hidden.drawn(blind, ["drag", "payload", "error_down"])
        assert [trace.name for trace in figure.data] == ["90 %", "told"] * 3
        assert [each.text for each in figure.layout.annotations] == ["payload (kg)", "drag (kg/s)", "error down (m)"]
        assert sum(bool(trace.showlegend) for trace in figure.data) == 2


class TestMissed:
    def test_equations_notice_what_they_are_about(self) -> None:
        [flown] = fleet.flown(Telemetry(flights=3, least=1500, most=1500))
        truth, *wrong = hidden.missed(telemetry.series([flown[0]]), 200)
        assert truth["told"] == "the truth"
        rows = {row["told"].split(" wrong")[0]: row for row in wrong}
        for name, equation in (("wind north", "force"), ("payload", "force"), ("drag", "force"), ("motor lag", "spin")):
            assert rows[name][equation] > 1.02 * truth[equation], name
        assert rows["battery sag"]["charge"] > truth["charge"]
        assert rows["wind north"]["charge"] == truth["charge"]
        assert max(truth[equation] for equation in ("force", "spin", "charge")) < 4.0


class TestPrinted:
    def test_falls_although_the_pace_is_the_same(self) -> None:
        rows = hidden.printed([100.0] * 4, 50, 1000)
        own, whole = ([row["pace"] for row in rows if row["how"].startswith(how)] for how in ("of the in", "of the wh"))
        assert own == [100.0] * 4
        assert whole == [2000.0, 1000.0, pytest.approx(2000 / 3), 500.0]

    def test_a_slow_interval_is_seen_in_its_own_pace(self) -> None:
        rows = hidden.printed([100.0, 25.0], 50, 1000)
        assert [row["seconds"] for row in rows] == [0.5, 0.5, 2.5, 2.5]
        assert rows[2]["pace"] == 25.0


def test_scores_side_by_side() -> None:
    row = {"mean": 0.9, "low": 0.8, "high": 0.95}
    found = hidden.scores({"network": {"r2": {"drag": row}}, "ridge": {"r2": {"drag": {**row, "mean": 0.5}}}})
    assert found[1] == {"target": "drag", "by": "ridge", "r2": 0.5, "low": 0.8, "high": 0.95}
    assert len(found) == 2


def test_differences_are_those_of_each_seed() -> None:
    before = {"mean_r2": {"each": [0.1, 0.5]}, "r2": {"drag": {"each": [0.2, 0.3]}}}
    after = {"mean_r2": {"each": [0.2, 0.6]}, "r2": {"drag": {"each": [0.1, 0.6]}}}
    mean, drag = hidden.differences(before, after)
    assert [mean[name] for name in ("by", "low", "high")] == pytest.approx([0.1] * 3)  # seeds differ, changes do not
    assert (drag["target"], drag["by"]) == ("drag", pytest.approx(0.1))
    assert drag["low"] == pytest.approx(-0.1)
    with pytest.raises(ValueError, match="zip"):
        hidden.differences(before, {**after, "mean_r2": {"each": [0.2]}})


def test_a_run_is_named_by_its_updates(tmp_path: Path) -> None:
    from uavlab.app.config import configure
    from uavlab.app.run import Run

    run = Run(configure("telemetry", sizes("telemetry"), {"updates": 1}), tmp_path / "run")
    for _ in run.train():
        pass
    found, name = hidden.learned(str(tmp_path / "run"), 5, 8, device="cpu")
    assert (name, found.update) == ("learned, 1 updates", 1)
