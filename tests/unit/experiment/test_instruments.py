"""Shares of the time by stage since the reading before, of one monitor or of several in turn."""

import gc
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.support.fixtures_config import sizes, tiny
from tests.support.live_runs import trained
from uavlab.experiment import instruments
from uavlab.experiment.config import configure
from uavlab.experiment.instruments import Instruments, in_digest, rounds, updates_of
from uavlab.experiment.run_state import Change
from uavlab.runtime.runtime import Runtime


class FakeMonitor:
    """A monitor whose stages took what a test says."""

    def __init__(self, resets: int = 1, **total: float) -> None:
        self.resets, self.total = resets, total

    def read(self) -> list[dict[str, Any]]:
        return [{"name": name, "total_ms": total} for name, total in self.total.items()]


def shares(each: Any, monitor: Any) -> dict[str, float]:
    figures = each.read(SimpleNamespace(monitor=monitor, device=torch.device("cpu")))
    return {name[5:]: round(value, 6) for name, value in figures.items() if name.startswith("time/")}


def since_the_last_reading(kind: type[Instruments]) -> None:
    """Read a monitor twice, after a reset, and another one that may lie where the first one lay."""
    each, monitor = kind(), FakeMonitor(update=300.0, draw=100.0)
    assert shares(each, monitor) == {"update": 0.75, "draw": 0.25}
    monitor.total = {"update": 350.0, "draw": 200.0, "copy": 50.0}  # 50, 100 and 50 more
    assert shares(each, monitor) == {"update": 0.25, "draw": 0.5, "copy": 0.25}
    monitor.resets, monitor.total = 2, {"update": 10.0, "draw": 30.0}
    assert shares(each, monitor) == {"update": 0.25, "draw": 0.75}
    del monitor
    gc.collect()
    others = [FakeMonitor(resets=2, update=30.0, draw=10.0) for _ in range(100)]  # one in the place of the former
    for other in others:
        assert shares(each, other) == {"update": 0.75, "draw": 0.25}


class Cumulative(Instruments):
    """A broken one: shares of all the time so far."""

    def read(self, rt: Any) -> dict[str, float]:
        self._before = {}
        return super().read(rt)


class Blind(Instruments):
    """A broken one: it takes a monitor that was reset, or another one, for the former."""

    def read(self, rt: Any) -> dict[str, float]:
        self._of = (rt.monitor, rt.monitor.resets)
        return super().read(rt)


def test_shares_are_those_since_the_last_reading() -> None:
    since_the_last_reading(Instruments)


@pytest.mark.parametrize("broken", [Cumulative, Blind])
def test_broken_ones_are_caught(broken: type[Instruments]) -> None:
    with pytest.raises(AssertionError):
        since_the_last_reading(broken)


def test_several_read_one_monitor() -> None:
    one, other, monitor = Instruments(), Instruments(), FakeMonitor(update=10.0)
    shares(one, monitor)
    monitor.total = {"update": 10.0, "draw": 10.0}
    assert shares(one, monitor) == {"update": 0.0, "draw": 1.0}
    assert shares(other, monitor) == {"update": 0.5, "draw": 0.5}


def test_where_no_time_passed_there_are_no_shares() -> None:
    each, monitor = Instruments(), FakeMonitor(update=10.0)
    shares(each, monitor)
    assert shares(each, monitor) == {}


def test_without_a_monitor_nothing_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instruments, "memory", lambda device: 1 / 0)
    assert Instruments().read(Runtime()) == {}


def test_memory_is_in_mebibytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instruments, "memory", lambda device: {"resident": 3 * 2**20, "peak": 2**19})
    rt: Any = SimpleNamespace(monitor=FakeMonitor(), device=torch.device("cpu"))
    assert Instruments().read(rt) == {"memory/resident": 3.0, "memory/peak": 0.5}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        *(("seconds", False), ("time/update", False), ("memory/resident", False), ("counts/rounds", False)),
        *(("eval/time", True), ("actor_loss", True), ("counts", True)),
    ],
)
def test_figures_of_the_digest(name: str, expected: bool) -> None:
    assert in_digest(name) is expected


def change(update: int, undone: str = "", **settings: tuple[int, int]) -> Change:
    return Change(update, settings, undone=undone)


@pytest.mark.parametrize(
    ("updates", "interval", "ratio", "changes", "expected"),
    [
        (0, 10, 1, [], 0),
        (200, 10, 1, [], 20),  # an episode of 200 steps: 20 rounds of 10 updates, which are 200
        (200, 1, 1, [], 200),
        (21, 10, 1, [], 3),  # the third has begun
        (20, 5, 2, [], 2),
        (30, 10, 1, [change(20, interval=(1, 10))], 21),
        (30, 10, 2, [change(20, interval=(1, 10)), change(24, ratio=(1, 2), lr=(1, 2))], 20 + 1 + 1),
        (30, 10, 1, [change(20, interval=(1, 10), undone="memory"), change(25, worlds=(1, 2))], 3),
    ],
)
def test_rounds_by_hand(updates: int, interval: int, ratio: int, changes: list[Change], expected: int) -> None:
    assert rounds(updates, interval, ratio, changes) == expected


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ((6250, 200), 1_250_000),
        ((6250, 200, 64), 19_532),  # 19,531.25 steps of all worlds
        ((6250, 200, 64, 1, 64), 19_532 * 64),
        ((10, 20, 4, 5), 10),
        ((10, 20, 4, 5, 3), 30),
    ],
)
def test_updates_of_episodes_by_hand(sizes: tuple[int, ...], expected: int) -> None:
    assert updates_of(*sizes) == expected


@pytest.mark.parametrize("name", ["scale_out_balanced", "scale_out_aggressive"])
def test_presets_of_the_command_lines_have_their_episodes(name: str) -> None:
    config = configure(name)
    source, toggles = config.source, config.toggles
    sizes = (config.env.horizon, source.worlds, source.world_steps, toggles.ratio)
    assert config.run.updates == updates_of(6250, *sizes)
    assert (source.batch, toggles.interval) == (512, 10 if name.endswith("balanced") else 20)
    assert config.env.horizon % toggles.interval == 0


def test_presets_of_intervals_differ_by_the_interval_alone() -> None:
    first = configure("interval_1").values
    for k in (1, 5, 10, 20):
        assert configure(f"interval_{k}").values == {**first, "interval": k}


SAFE = {"horizon": 6, "worlds": 4, "learning_starts": 16, "crash_radius": 1.0, "evaluate_every": 99}


def counted(**settings: Any) -> list[dict[str, float]]:
    """Return the counts of each row of a run whose episodes all end at their horizon."""
    run = trained(tiny(**{**SAFE, "updates": 18, "log_every": 6, "checkpoint_every": 99, **settings}))
    rows = [{name: row[name] for name in row if name.startswith("counts/")} for row in run.recorder.rows]
    assert rows[-1]["counts/episodes"] == run.source.ended() == 4 * (run.source.steps // 6)
    return rows


@pytest.mark.parametrize("settings", [{}, {"runs": 2}, {"prefetch": "overlap"}])
def test_a_run_with_replay_logs_its_counts(settings: dict[str, Any]) -> None:
    rows = counted(interval=3, **settings)
    assert [row["counts/rounds"] for row in rows] == [1, 2, 4, 6]  # at updates 1, 6, 12 and 18
    assert [row["counts/gradient_steps"] for row in rows] == [1, 6, 12, 18]
    # 4 worlds of episodes of 6 steps, a step for each update
    assert rows[-1]["counts/updates_per_episode"] == pytest.approx(6 / 4)
    assert "counts/updates_per_episode" not in rows[0]


def test_the_ratio_multiplies_updates_per_episode() -> None:
    assert counted(ratio=6, updates=72, log_every=36)[-1]["counts/updates_per_episode"] == 6 * 6 / 4


def test_a_run_without_replay_has_no_counts() -> None:
    run = trained(configure("spread", sizes("spread", "mappo") | {"learner": "mappo", "updates": 2}))
    assert not [name for row in run.recorder.rows for name in row if name.startswith("counts/")]


def test_a_run_logs_them_and_its_digest_leaves_them_out() -> None:
    plain, watched = trained(tiny(updates=4)), trained(tiny(updates=4, monitor=True))
    row = watched.recorder.rows[-1]
    assert {"time/update", "time/acting", "time/environment", "memory/resident"} <= row.keys()
    assert sum(value for name, value in row.items() if name.startswith("time/")) == pytest.approx(1)
    assert not any(name.startswith(("time/", "memory/")) for row in plain.recorder.rows for name in row)
    assert plain.digest == watched.digest


def test_figures_are_means_over_seeds_and_those_of_each() -> None:
    figures = {"loss": torch.tensor([[1.0, 3.0], [5.0, 7.0]]), "return": torch.tensor([2.0, 4.0])}
    no_replay = SimpleNamespace(task=SimpleNamespace(collector=SimpleNamespace(replay=False)))
    run: Any = SimpleNamespace(rt=Runtime(), config=no_replay)
    means, seeds = Instruments().log(figures, run)
    assert means == {"loss": 4.0, "return": 3.0}
    assert seeds == {"loss": [2.0, 6.0], "return": [2.0, 4.0]}
