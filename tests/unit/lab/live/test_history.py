"""Samples of a run's speed: rates by hand, saves and scores left out, and a bounded number of them."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.fixtures_config import tiny
from uavlab.experiment import resume
from uavlab.experiment import run as run_module
from uavlab.experiment.config import configure
from uavlab.experiment.run import Run
from uavlab.experiment.run_state import Progress
from uavlab.runtime.runtime import Runtime
from uavlab_lab.live.trainer import MOST, History, Sample, rates, work


class FakeRun(SimpleNamespace):
    """A run whose updates take what a test says."""

    def __init__(self, number: int = 0, seconds: float = 0.0) -> None:
        super().__init__(number=number, seconds=seconds, late=0.0, score_seconds=0.0, pauses=[], rt=Runtime())

    def update(self, seconds: float, score: float = 0.0, save: float = 0.0) -> Progress:
        """Make an update of some seconds, with a score and a save after it, which count with the next update."""
        self.number, self.seconds, self.late = self.number + 1, self.seconds + self.late + seconds, score + save
        self.score_seconds = score or self.score_seconds
        self.pauses += [save] if save else []
        return Progress(self.number, None, self.seconds, score={"eval/x": 1.0} if score else None)

    def begin(self) -> None:
        """Train once more: a score and a save at the end of the training before do not count."""
        self.late = 0.0

    def save(self, seconds: float) -> None:
        """Save between two updates, which ``Run`` does not count as training."""
        self.pauses.append(seconds)


def readings(each: History) -> list[tuple[float, float, int]]:
    return [(round(sample.seconds, 6), round(sample.net, 6), sample.update) for sample in each.samples]


def spend(kind: type[History]) -> list[float]:
    """Return the seconds of each update of a run that scores and saves within updates and between them."""
    run: Any = FakeRun()
    each = kind(run)
    spent = [each.add(run, run.update(0.25)), each.add(run, run.update(0.25, score=8.0))]
    spent.append(each.add(run, run.update(0.25, save=4.0)))
    run.save(2.0)
    each.skip(run)
    spent.append(each.add(run, run.update(0.25)))  # the score of before is counted once
    spent.append(each.add(run, run.update(0.25, score=1.0, save=1.0)))
    run.save(3.0)
    run.begin()
    each.begin(run)
    spent.append(each.add(run, run.update(0.25)))
    return [round(seconds, 9) for seconds in spent]


class Careless(History):
    """A broken history: a save between updates shortens another update."""

    def add(self, run: Any, progress: Progress) -> float:
        spent = super().add(run, progress)
        self.skip = lambda run: None  # type: ignore[method-assign]
        return spent


class Late(History):
    """A broken history: a score at the end of training shortens the first update of the next one."""

    def begin(self, run: Any) -> None:
        self._late = getattr(self, "_late", 0.0)
        self._seconds, self._saves = run.seconds, len(run.pauses)


class TestSpent:
    def test_scores_and_saves_are_left_out_wherever_they_are(self) -> None:
        assert spend(History) == [0.25] * 6

    @pytest.mark.parametrize("broken", [Careless, Late])
    def test_counting_what_the_run_does_not_is_caught(self, broken: type[History]) -> None:
        assert spend(broken) != [0.25] * 6

    def test_net_seconds_are_their_sum(self) -> None:
        run: Any = FakeRun(number=10, seconds=100.0)
        each = History(run)
        for score in (0.0, 3.0):
            each.add(run, run.update(0.5, score))
        each.add(run, run.update(0.5))
        assert (each.net, run.seconds) == (101.5, 104.5)

    def test_a_real_run_counts_as_the_fake_one(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        """Its updates take 0.25 s, its scores 8 s, its saves 4 s by a clock of the test."""
        now = [0.0]
        clock = SimpleNamespace(monotonic=lambda: now[0], perf_counter=lambda: now[0])
        settings = {"updates": 6, "evaluate_every": 2, "checkpoint_every": 3, "log_every": 10}
        run = Run(tiny(**settings), tmp_path / "run")
        monkeypatch.setattr(run_module, "time", clock)

        def slow(owner: Any, name: str, seconds: float) -> None:
            function = getattr(owner, name)

            def call(*args: Any, **options: Any) -> Any:
                now[0] += seconds
                return function(*args, **options)

            monkeypatch.setattr(owner, name, call)

        slow(run.learner, "update", 0.25)
        slow(run_module, "mean_scores", 8.0)
        slow(resume, "save", 4.0)
        each, spent = History(run), []
        for progress in run.train():
            spent.append(each.add(run, progress))
            if progress.number in (1, 2):
                run.save()
                each.skip(run)
        assert spent == [0.25] * 6
        assert run.pauses == [4.0, 4.0, 4.0, 4.0]  # after updates 1 and 2 by hand, 3 and 6
        assert (each.net, run.seconds) == (1.5, 1.5 + 2 * 8.0 + 4.0)  # without the score and the save after update 6


class TestSamples:
    def test_they_are_taken_at_a_bounded_rate(self) -> None:
        run: Any = FakeRun(number=5, seconds=10.0)
        each = History(run)
        for _ in range(5):
            each.add(run, run.update(0.2))
        each.add(run, run.update(0.6, score=9.0))
        each.add(run, run.update(0.6))
        assert readings(each) == [(10.0, 10.0, 5), (10.6, 10.6, 8), (11.6, 11.6, 11), (21.2, 12.2, 12)]

    def test_one_before_a_change_needs_half_the_distance(self) -> None:
        run: Any = FakeRun()
        each = History(run)
        each.add(run, run.update(0.2))
        each.sample(run)
        assert len(each.samples) == 1
        each.add(run, run.update(0.1))
        each.sample(run)
        each.sample(run)
        assert readings(each) == [(0.0, 0.0, 0), (0.3, 0.3, 2)]

    def test_older_ones_are_thinned(self) -> None:
        run: Any = FakeRun()
        each = History(run)
        for _ in range(MOST):
            each.add(run, run.update(1.0))
        assert len(each.samples) == 1 + MOST - MOST // 4  # of the older half, every second one
        updates = [sample.update for sample in each.samples]
        assert updates[: MOST // 4] == list(range(0, MOST // 2, 2))
        assert updates[MOST // 4 :] == list(range(MOST // 2, MOST + 1))
        for _ in range(3 * MOST):
            each.add(run, run.update(1.0))
            assert len(each.samples) <= MOST
        assert each.samples[0].update == 0
        assert each.samples[-1].update == 4 * MOST
        assert {round(rate, 9) for _, rate in rates(each.samples)} == {1.0}

    def test_training_elsewhere_begins_a_new_history(self) -> None:
        run: Any = FakeRun()
        each = History(run)
        each.add(run, run.update(1.0))
        for _ in range(100):
            run.update(0.01)  # in a loop of somebody else
        each.begin(run)
        assert readings(each) == [(2.0, 1.0, 101)]
        assert each.add(run, run.update(1.0)) == 1.0
        assert rates(each.samples) == [(pytest.approx(3.0), 1.0)]

    def test_they_have_the_readings_of_a_monitor(self) -> None:
        run = Run(tiny(monitor=True, updates=4))
        each = History(run)
        for progress in run.train():
            each.add(run, progress)
        each.sample(run, 0)
        shares = [value for name, value in each.samples[-1].figures.items() if name.startswith("time/")]
        assert sum(shares) == pytest.approx(1)
        assert each.samples[0].figures == {}


class TestRates:
    def test_by_hand(self) -> None:
        samples = [Sample(0, 0, 0), Sample(2, 1, 4), Sample(5, 1.5, 10), Sample(9, 1.5, 10), Sample(10, 2.5, 13)]
        assert rates(samples) == [(2, 4.0), (5, 12.0), (10, 3.0)]  # none where no time passed

    @pytest.mark.parametrize("samples", [[], [Sample(1, 1, 1)]])
    def test_one_sample_has_none(self, samples: list[Sample]) -> None:
        assert rates(samples) == []


WORK = [
    ("leader_follower", {"batch": 8, "worlds": 4, "runs": 3, "ratio": 1}, {"rows": 24, "agent-steps": 24.0}),
    ("leader_follower", {"batch": 8, "worlds": 4, "runs": 3, "ratio": 4}, {"rows": 24, "agent-steps": 6.0}),
    ("spread", {"learner": "ippo", "worlds": 2, "rollout_steps": 5}, {"agent-steps": 30}),
    ("telemetry", {"batch": 8, "runs": 2}, {"windows": 16}),
]


@pytest.mark.parametrize(("preset", "settings", "expected"), WORK)
def test_what_an_update_stands_for(preset: str, settings: dict[str, Any], expected: dict[str, float]) -> None:
    assert work(configure(preset, {"device": "cpu", **settings})) == expected
