"""Readings since the reading before, of one monitor or of several in turn; they leave the bits of a run alone."""

import gc
import math
import threading
from statistics import mean
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.support.fixtures_config import sizes, tiny
from tests.support.live_runs import trained
from uavlab.experiment import instruments
from uavlab.experiment.config import configure
from uavlab.experiment.instruments import OPERATORS, Instruments, cpu_seconds, rounds
from uavlab.experiment.run import Run
from uavlab.experiment.run_state import Change
from uavlab.profiling.roofline import count_operators
from uavlab.runtime.runtime import Runtime
from uavlab.runtime.toggles import Toggles, with_toggles
from uavlab.storage.metrics_log import in_digest
from uavlab_lab.measure.compare import build_call


class FakeMonitor:
    """A monitor whose stages took, in each update that was timed, the milliseconds that a test says."""

    def __init__(self, *updates: dict[str, float], resets: int = 1) -> None:
        self.resets, self.timed = resets, list(updates)

    @property
    def updates(self) -> int:
        return len(self.timed)

    def by_update(self, since: int) -> dict[str, list[float]]:
        names = dict.fromkeys(name for update in self.timed for name in update)
        later = self.timed[since:]
        return {name: [update[name] / 1e3 for update in later if name in update] for name in names}


def shares(each: Any, monitor: Any) -> dict[str, float]:
    figures = each.read(SimpleNamespace(monitor=monitor, device=torch.device("cpu")))
    return {name[5:]: round(value, 6) for name, value in figures.items() if name.startswith("time/")}


def since_the_last_reading(kind: type[Instruments]) -> None:
    """Read a monitor twice, after a reset, and another one that may lie where the first one lay."""
    each, monitor = kind(), FakeMonitor({"update": 300.0, "draw": 100.0})
    assert shares(each, monitor) == {"update": 0.75, "draw": 0.25}
    monitor.timed.append({"update": 50.0, "draw": 100.0, "copy": 50.0})
    assert shares(each, monitor) == {"update": 0.25, "draw": 0.5, "copy": 0.25}
    monitor.resets, monitor.timed = 2, [{"update": 10.0, "draw": 30.0}]
    assert shares(each, monitor) == {"update": 0.25, "draw": 0.75}
    del monitor
    gc.collect()
    others = [FakeMonitor({"update": 30.0, "draw": 10.0}, resets=2) for _ in range(100)]  # in the place of the former
    for other in others:
        assert shares(each, other) == {"update": 0.75, "draw": 0.25}


class Cumulative(Instruments):
    """A broken one: shares of all the time so far."""

    def read(self, rt: Any) -> dict[str, float]:
        self._updates = 0
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


def one_update_that_was_interrupted() -> None:
    """12 updates of 8 ms, with 2 ms of acting in every third; in one of these another program took 331 ms."""
    updates = [{"update": 8.0, **({"acting": 2.0} if number % 3 == 0 else {})} for number in range(12)]
    updates[6]["acting"] = 331.0
    figures = Instruments().read(watched_by(FakeMonitor(*updates)))
    assert figures["ms/update"] == pytest.approx(8.0)
    assert figures["ms/acting"] == pytest.approx(2.0 / 3)
    assert figures["time/acting"] == pytest.approx(2.0 / 3 / (8.0 + 2.0 / 3))
    assert figures["time/update"] + figures["time/acting"] == pytest.approx(1)


def test_one_update_that_was_interrupted_moves_no_share() -> None:
    one_update_that_was_interrupted()


def test_means_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instruments, "median", mean)
    with pytest.raises(AssertionError):
        one_update_that_was_interrupted()


def test_several_read_one_monitor() -> None:
    one, other, monitor = Instruments(), Instruments(), FakeMonitor({"update": 10.0})
    shares(one, monitor)
    monitor.timed.append({"draw": 10.0})
    assert shares(one, monitor) == {"update": 0.0, "draw": 1.0}
    assert shares(other, monitor) == {"update": 0.5, "draw": 0.5}


def test_where_no_time_passed_there_are_no_shares() -> None:
    each, monitor = Instruments(), FakeMonitor({"update": 10.0})
    shares(each, monitor)
    assert shares(each, monitor) == {}


def test_without_a_monitor_nothing_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instruments, "memory", lambda device: 1 / 0)
    assert Instruments().read(Runtime()) == {}


def test_memory_is_in_mebibytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instruments, "memory", lambda device: {"resident": 3 * 2**20, "peak": 2**19})
    figures = Instruments().read(watched_by(FakeMonitor()))
    assert {name: value for name, value in figures.items() if name.startswith("memory/")} == {
        "memory/resident": 3.0,
        "memory/peak": 0.5,
    }


def watched_by(monitor: FakeMonitor, device: str = "cpu") -> Any:
    return SimpleNamespace(monitor=monitor, device=torch.device(device))


def test_milliseconds_are_those_of_an_update_that_was_timed() -> None:
    each, monitor = Instruments(), FakeMonitor(*[{"update": 10.0}] * 3, {"update": 10.0, "draw": 2.0})
    figures = each.read(watched_by(monitor))
    assert (figures["ms/update"], figures["ms/draw"]) == (10.0, 0.5)
    monitor.timed += [{"update": 3.0}, {"update": 5.0}]
    figures = each.read(watched_by(monitor))
    assert (figures["ms/update"], figures["ms/draw"]) == (4.0, 0.0)
    assert not [name for name in each.read(watched_by(monitor)) if name.startswith("ms/")]  # no update since


def test_load_is_processor_time_over_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = {"cpu": 5.0, "now": 100.0}
    monkeypatch.setattr(instruments, "cpu_seconds", lambda: clock["cpu"])
    monkeypatch.setattr(instruments.time, "monotonic", lambda: clock["now"])
    each = Instruments()
    assert "load/cpu" not in each.read(watched_by(FakeMonitor()))  # no time has passed
    clock.update(cpu=8.0, now=102.0)
    assert each.read(watched_by(FakeMonitor()))["load/cpu"] == 1.5  # one core and a half
    clock.update(now=104.0)
    assert each.read(watched_by(FakeMonitor()))["load/cpu"] == 0.0


def test_processor_time_is_that_of_all_threads() -> None:
    """The time that a thread works counts, however busy the machine is."""
    before, done = cpu_seconds(), threading.Event()

    def work() -> None:
        while cpu_seconds() - before < 0.05:
            pass
        done.set()

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert done.is_set()


class TestOnAGpu:
    @pytest.fixture(autouse=True)
    def no_memory(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(instruments, "memory", lambda device: {})

    def test_it_is_asked_for_its_load_and_power(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(torch.cuda, "utilization", lambda device: 75)
        monkeypatch.setattr(torch.cuda, "power_draw", lambda device: 312_500)
        figures = Instruments().read(watched_by(FakeMonitor(), "cuda"))
        assert (figures["load/gpu"], figures["load/gpu_watts"]) == (0.75, 312.5)

    @pytest.mark.parametrize(
        ("error", "reason"),
        [
            (ModuleNotFoundError("pynvml does not seem to be installed"), "ModuleNotFoundError: pynvml does not"),
            (type("NVMLError_NotSupported", (Exception,), {})(), "NVMLError_NotSupported"),
        ],
    )
    def test_where_it_does_not_answer_a_run_says_so_once(
        self, error: Exception, reason: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        asked = []

        def utilization(device: Any) -> int:
            asked.append(device)
            raise error

        monkeypatch.setattr(torch.cuda, "utilization", utilization)
        each = Instruments()
        with pytest.warns(UserWarning, match=rf"no load/gpu in the log \({reason}.*pip install \"uavlab\[gpu\]\""):
            assert "load/gpu" not in each.read(watched_by(FakeMonitor(), "cuda"))
        assert "load/gpu" not in each.read(watched_by(FakeMonitor(), "cuda"))
        assert len(asked) == 1


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        *(("seconds", False), ("time/update", False), ("memory/resident", False), ("counts/rounds", False)),
        *(("ms/update", False), ("load/cpu", False), ("counts/operators", False)),
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


@pytest.mark.parametrize("name", ["scale_out_balanced", "scale_out_aggressive"])
def test_presets_of_the_command_lines_have_their_episodes(name: str) -> None:
    config = configure(name)
    source, toggles = config.source, config.toggles
    turns = math.ceil(6250 * config.env.horizon / (source.worlds * source.world_steps))
    assert config.run.updates == turns * toggles.ratio
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
    assert {"ms/update", "load/cpu"} <= row.keys()
    readings = ("time/", "ms/", "load/", "memory/", OPERATORS)
    assert not any(name.startswith(readings) for row in plain.recorder.rows for name in row)
    assert plain.digest == watched.digest


def operators(run: Any) -> list[float | None]:
    return [row.get(OPERATORS) for row in run.recorder.rows if "seconds" in row]


class TestOperators:
    def test_those_of_one_update_are_counted_after_an_interval_of_the_log(self) -> None:
        run = trained(tiny(updates=6, log_every=2, evaluate_every=6, monitor=True))
        first, second, *later = operators(run)  # updates 1, 2, 4 and 6
        assert (first, second) == (None, None)
        assert later[0] == later[1]
        one = build_call(run.config, "cycle")
        one.call()  # the first cycle also fills replay
        assert later[0] == count_operators(one.call)
        assert run.rt.monitor is not None
        assert run.rt.monitor.updates == 5  # the one that was counted is not timed

    def test_a_round_of_an_interval_is_counted_whole(self) -> None:
        counts = [
            operators(trained(tiny(updates=12, log_every=4, monitor=True, interval=interval)))[-1]
            for interval in (1, 2, 4)
        ]
        assert counts[0] == counts[1] == counts[2]  # as many steps as updates, in whatever order

    def test_a_change_is_counted_anew(self) -> None:
        run = Run(tiny(updates=12, log_every=2, monitor=True))
        steps = run.train()
        for progress in steps:
            if progress.number == 6:
                run.change(update="loop")
        counts = operators(run)
        assert counts[3] not in (counts[-1], None)  # of updates 6 and 12
        assert counts[4] is None  # of update 8, before the count

    @pytest.mark.parametrize("toggle", [{"compile": "default"}, {"graph": "update"}])
    def test_what_cannot_be_seen_is_not_counted(self, toggle: dict[str, str]) -> None:
        rt = SimpleNamespace(toggles=with_toggles(Toggles(), toggle))
        run: Any = SimpleNamespace(rt=rt, number=100, changes=[], config=tiny(log_every=1))
        assert not instruments.countable(run)
        run.rt.toggles = Toggles()
        assert instruments.countable(run)

    def test_a_comparison_is_not_disturbed(self) -> None:
        rt = SimpleNamespace(toggles=Toggles())
        run: Any = SimpleNamespace(rt=rt, number=9, changes=[Change(5, by="comparison")], config=tiny(log_every=4))
        assert not instruments.countable(run)
        run.changes = [Change(5, by="panel")]
        assert instruments.countable(run)
        run.number = 8
        assert not instruments.countable(run)


def test_of_a_long_interval_of_the_log_some_updates_are_timed() -> None:
    run = trained(tiny(updates=13, monitor=True, log_every=1000, checkpoint_every=1000, evaluate_every=1000))
    assert run.rt.monitor.updates == 2  # updates 5 and 13


def test_figures_are_means_over_seeds_and_those_of_each() -> None:
    figures = {"loss": torch.tensor([[1.0, 3.0], [5.0, 7.0]]), "return": torch.tensor([2.0, 4.0])}
    no_replay = SimpleNamespace(task=SimpleNamespace(collector=SimpleNamespace(replay=False)))
    run: Any = SimpleNamespace(rt=Runtime(), config=no_replay)
    means, seeds = Instruments().log(figures, run)
    assert means == {"loss": 4.0, "return": 3.0}
    assert seeds == {"loss": [2.0, 6.0], "return": [2.0, 4.0]}
