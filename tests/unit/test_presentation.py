"""Flights and pages from Python: files that are written, and what is refused before anything flies."""

from pathlib import Path

import pytest

import uavlab as ul
from uavlab import presentation
from uavlab.core.errors import ConfigError
from uavlab.experiment import scores


def test_a_flight_of_a_baseline_is_written(tmp_path: Path) -> None:
    figure = presentation.fly(ul.make("spread", horizon=3), tmp_path / "flight.html", policy="random")
    assert figure.layout.meta["steps"] == 3
    assert "plotly" in (tmp_path / "flight.html").read_text().lower()


def test_another_suffix_is_refused_before_the_flight(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flights: list[object] = []
    monkeypatch.setattr(scores, "fly_baseline", lambda *given: flights.append(given))
    with pytest.raises(ConfigError, match=r"\.txt"):
        presentation.fly("spread", tmp_path / "flight.txt", policy="random")
    assert (flights, list(tmp_path.iterdir())) == ([], [])


def test_a_page_needs_a_folder() -> None:
    run = ul.start("spread", settings={"hidden": 8}, learner="ippo")
    with pytest.raises(ConfigError, match="has no folder"):
        presentation.report(run)
