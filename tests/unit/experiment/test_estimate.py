"""The time of a run is estimated from some of its updates; nothing is written, and later runs keep their bits."""

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.support.fixtures_config import SMALL_FLIGHTS, sizes, tiny
from uavlab.core.errors import ConfigError
from uavlab.envs.leader_follower.env import LeaderFollower
from uavlab.experiment import fit
from uavlab.experiment.build import ENVIRONMENTS
from uavlab.experiment.config import configure
from uavlab.experiment.fit import Pace, measure
from uavlab.experiment.run import Run

PACE = Pace(measured=20, seconds=0.2, size="", update_s=0.01, warm_up_s=5.0, score_s=2.0, apart="")


@pytest.mark.parametrize(
    ("changes", "minutes", "updates"),
    [
        ({"updates": 8000, "evaluate_every": 500}, (5 + 8000 * 0.01 + 16 * 2) / 60, 8000),
        ({"updates": 8000, "evaluate_every": 10**9}, (5 + 8000 * 0.01) / 60, 8000),
        ({"updates": None, "minutes": 2.0, "evaluate_every": 500}, 2.0, 8215),  # 115 s / (10 ms + 2 s / 500)
        ({"updates": 100, "minutes": 2.0, "evaluate_every": 500}, (5 + 100 * 0.014) / 60, 100),
        ({"updates": None, "minutes": 0.01, "evaluate_every": 500}, 5.014 / 60, 1),  # over before the first update
    ],
)
def test_the_time_of_a_run(changes: dict[str, object], minutes: float, updates: int) -> None:
    run = replace(configure("leader_follower").run, **changes)  # type: ignore[arg-type]
    result = PACE.estimate(run)
    assert result.minutes == pytest.approx(minutes, abs=1e-3)
    assert result.updates == updates


@pytest.mark.parametrize(
    ("changes", "settings", "text"),
    [
        ({}, {}, "about 1.9 minutes here for 8,000 updates, with 5 seconds of warm-up, from 20 in 0.2 s"),
        (
            {"warm_up_s": 1.0, "size": "4 of 16 worlds"},
            {},
            "1.9 minutes here for 8,000 updates, from 20 in 0.2 s with 4",
        ),
        ({"apart": "60 flights to simulate"}, {}, " from 20 in 0.2 s; apart from 60 flights to simulate"),
        ({}, {"patience": 3}, "at most about 1.9 minutes here"),
        ({"update_s": 0.001, "score_s": None}, {}, "about 13 seconds here"),
        ({"update_s": 5.0}, {}, "about 11 hours here"),
        ({"update_s": 50.0}, {}, "about 4.6 days here"),
        ({"update_s": 5000.0}, {}, "about 463 days here"),
    ],
)
def test_the_text(changes: dict[str, object], settings: dict[str, object], text: str) -> None:
    run = replace(configure("leader_follower").run, updates=8000, **settings)  # type: ignore[arg-type]
    assert text in str(replace(PACE, **changes).estimate(run))  # type: ignore[arg-type]


def test_an_update_that_waits_for_the_steps_of_its_round() -> None:
    times = [3.0, 0.0, 0.0, 3.0, 0.0, 0.0, 90.0, 0.0]
    assert fit._typical(times, 3) == 1.0
    assert fit._typical([1.0, 2.0, 90.0], 1) == 2.0
    assert fit._typical([2.0, 4.0], 10) == 3.0  # no whole round


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_every_environment(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    pace = measure(configure(name, sizes(name), {"updates": 3, "runs": 2}), 0.0)
    assert (pace.measured, list(tmp_path.iterdir())) == (1, [])
    assert pace.update_s > 0
    assert (pace.score_s is None) is (name == "telemetry")
    assert ("scores" in pace.apart) is (name == "telemetry")


def test_a_run_of_one_update() -> None:
    pace = measure(tiny(updates=1))
    assert (pace.measured, pace.warm_up_s < pace.seconds) == (1, True)


def test_no_log_is_read_for_an_estimate(tmp_path: Path) -> None:
    for number in range(5):
        (tmp_path / f"{number}.csv").write_text("damaged")
    own = {**SMALL_FLIGHTS, "flights": 600, "logs": str(tmp_path), "updates": 2}
    pace = measure(configure("telemetry", own), 0.0)
    assert pace.apart == "5 logs to read, and scores"


def test_the_bits_of_a_later_run_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = Run(tiny())
    list(alone)
    observe = LeaderFollower.observe

    def draws(self: LeaderFollower, state: object) -> torch.Tensor:
        torch.rand(1), np.random.rand(), random.random()  # as an environment of one's own may do
        return observe(self, state)  # type: ignore[arg-type]

    monkeypatch.setattr(LeaderFollower, "observe", draws)
    before = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()  # type: ignore[union-attr, index]
    threads = torch.get_num_threads()
    measure(tiny())
    after = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()  # type: ignore[union-attr, index]
    assert torch.equal(before[0], after[0])
    assert (before[1:], threads) == (after[1:], torch.get_num_threads())
    later = Run(tiny())
    list(later)
    assert later.digest == alone.digest


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ConfigError, match="cuda requested"):
        measure(tiny(device="cuda"))
