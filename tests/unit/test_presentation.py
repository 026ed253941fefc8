"""Flights and pages from Python: files that are written, and what is refused before anything flies."""

from pathlib import Path

import pytest

import uavlab as ul
from tests.support.sweeps import result, scripted
from uavlab import api
from uavlab.core import extras
from uavlab.core.errors import ConfigError
from uavlab.experiment import scores


def test_a_flight_of_a_baseline_is_written(tmp_path: Path) -> None:
    figure = api.fly(ul.make("spread", horizon=3), tmp_path / "flight.html", policy="random")
    assert figure.layout.meta["steps"] == 3
    assert "plotly" in (tmp_path / "flight.html").read_text().lower()


def test_another_suffix_is_refused_before_the_flight(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flights: list[object] = []
    monkeypatch.setattr(scores, "fly_baseline", lambda *given: flights.append(given))
    with pytest.raises(ConfigError, match=r"\.txt"):
        api.fly("spread", tmp_path / "flight.txt", policy="random")
    assert (flights, list(tmp_path.iterdir())) == ([], [])


def test_a_page_needs_a_folder() -> None:
    run = ul.start("spread", settings={"hidden": 8}, learner="ippo")
    with pytest.raises(ConfigError, match="has no folder"):
        api.report(run)


def test_a_sweep_from_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scripted(monkeypatch, lambda folder, request: result(request["settings"]["lr"]))
    table = ul.sweep(
        {"presets": ["pursuit"], "grid": {"lr": [0.1, 0.2]}, "episodes": 3}, tmp_path / "s", progress=False
    )
    assert table.complete
    assert table.compare("lr=0.2", "lr=0.1") == pytest.approx((0.1, 0.1, 0.1))
    assert (tmp_path / "s" / "report.html").exists()
    assert callable(ul.sweep)  # no module of this name hides it


def test_a_sweep_without_its_packages_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "find_spec", lambda name: None)
    with pytest.raises(ul.MissingPackageError, match=r"needs plotly, not installed; .*uavlab\[sweep\]"):
        ul.sweep({"presets": ["pursuit"]}, tmp_path / "s")
    assert not (tmp_path / "s").exists()
