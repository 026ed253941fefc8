"""Figures of episodes that end in training: by hand, against evaluation's, and what a mistake would change."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support.fixtures_config import sizes, stop_and_resume, tiny, train_run
from uavlab.collectors.fixed_length import FixedLengthCollector, FixedLengthConfig
from uavlab.collectors.on_policy import OnPolicyCollector, RolloutConfig
from uavlab.core.rng import Streams
from uavlab.core.types import EnvSpec, Metric, tensors
from uavlab.envs import autoreset, tally
from uavlab.envs.tally import Tally, add_step, read_tally, start_tally
from uavlab.evaluation import COMMON, episodes
from uavlab.experiment.config import configure
from uavlab.experiment.run import Run
from uavlab.runtime.runtime import Runtime


@tensors
class State:
    length: Tensor  # B
    step: Tensor  # B


@dataclass(frozen=True)
class Counting:
    """Episodes of 1 to 5 steps, as noise says, of which those of 5 run into the limit of 4; rewards are of two."""

    metrics = (Metric("last", "last"), Metric("sum", "sum"), Metric("mean", "mean"), Metric("won", "outcome"))
    spec = EnvSpec(agents=2, obs=1, action=1, horizon=4, dt=1.0, initial_noise=1, step_noise=0, groups=(0, 0))

    def initial(self, noise: Tensor) -> State:
        return State(length=1 + (5 * noise[:, 0]).long(), step=torch.zeros(len(noise), dtype=torch.int64))

    def transition(self, state: State, action: Tensor, noise: Tensor) -> State:
        return State(length=state.length, step=state.step + 1)

    def observe(self, state: State) -> Tensor:
        return state.step.float()[:, None, None].expand(-1, 2, -1)

    def reward(self, state: State, action: Tensor, after: State) -> Tensor:
        return torch.stack((after.step.float(), after.step.float() + 2), 1)

    def terminated(self, state: State) -> Tensor:
        return (state.step >= state.length)[:, None].expand(-1, 2)

    def measure(self, state: State, action: Tensor, after: State) -> dict[str, Tensor]:
        step, won = after.step.float(), (after.step >= after.length).float()
        return {"last": 10 * step, "sum": step, "mean": step, "won": won}


ENV = Counting()
EPISODE = {  # figures of an episode that ends by itself after n steps, and of one of 4 that does not
    n: [10.0 * n, n * (n + 1) / 2, (n + 1) / 2, 1.0, n * (n + 1) / 2 + n, n, 0.0] for n in (1, 2, 3, 4)
} | {5: [40.0, 10.0, 2.5, 0.0, 14.0, 4.0, 1.0]}
NAMES = [f"episode/{name}" for name in ("last", "sum", "mean", "won", "return", "flight_time", "timeout")]


def mean_of(lengths: list[int]) -> list[float]:
    return [sum(column) / len(lengths) for column in zip(*(EPISODE[n] for n in lengths), strict=True)]


def walk(lengths: list[int], later: list[int], steps: int, move: Callable = autoreset.advance) -> Any:
    """Step worlds whose first episodes, and the next ones, have these lengths."""
    noise = (torch.tensor([lengths, later]) - 0.5) / 5
    worlds = autoreset.start_worlds(ENV, noise[0, :, None], tally=True)
    pool = autoreset.make_pool(ENV, noise[1:, :, None])
    for _ in range(steps):
        worlds, _ = move(ENV, worlds, torch.zeros(len(lengths), 2, 1), torch.zeros(len(lengths), 0), pool)
    return worlds


def check_by_hand() -> None:
    worlds = walk([1, 2, 3, 5], [3, 3, 3, 3], steps=6)
    figures = read_tally(ENV, worlds.tally, 1)
    assert list(figures) == NAMES
    got = [float(each) for each in figures.values()]
    assert got == pytest.approx(mean_of([1, 2, 3, 5, 3, 3, 3]))


def test_means_over_the_episodes_that_ended() -> None:
    check_by_hand()


def never_anew(env: Any, before: Tally, *rest: Any) -> Tally:
    after = add_step(env, before, *rest)
    return replace(after, running=torch.where(after.running == 0, before.running, after.running))


def every_step(env: Any, before: Tally, step: Any, reward: Tensor, ends: Tensor) -> Tally:
    return add_step(env, before, step, reward, ends | True)


def no_limit(env: Any, before: Tally, step: Any, reward: Tensor, ends: Tensor) -> Tally:
    return add_step(env, before, step, reward, ends & torch.tensor([[True], [False]]))


@pytest.mark.parametrize("broken", [never_anew, every_step, no_limit])
def test_mistakes_are_noticed(broken: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(autoreset, "add_step", broken)
    with pytest.raises(AssertionError):
        check_by_hand()


def test_an_episode_is_read_once_and_by_run() -> None:
    worlds = walk([1, 5, 2, 5], [5, 5, 5, 5], steps=2)
    assert read_tally(ENV, worlds.tally, 4) == {}  # two runs have no episode yet, and sums go on
    figures = read_tally(ENV, worlds.tally, 2)
    assert figures["episode/sum"].tolist() == [1.0, 3.0]
    assert read_tally(ENV, worlds.tally, 2) == {}


def test_figures_are_those_of_evaluations() -> None:
    assert tuple(metric.name for metric in COMMON if metric.name) == ("flight_time", "timeout", "return")
    assert set(tally.COMMON) == {metric.name for metric in COMMON}
    env, rng = tiny().env, Streams([0, 1])
    source = OnPolicyCollector(env, still, RolloutConfig(worlds=5), rng, Runtime(), tally=True)
    source.next()
    once = {name: float(each.mean()) for name, each in source.figures().items()}
    source.next()  # the tally starts anew
    again = {name: float(each.mean()) for name, each in source.figures().items()}
    streams = Streams([0, 1])
    monkey = {f"evaluate.{name}": name for name in ("start", "step")}
    uniform = streams.uniform
    streams.uniform = lambda name, *shape: uniform(monkey.get(name, name), *shape)  # type: ignore[method-assign]
    for got in (once, again):
        expected = {f"episode/{name}": float(each.mean()) for name, each in episodes(env, still, streams, 5).items()}
        assert got == pytest.approx(expected, rel=1e-5)
    assert once != again


def still(obs: Tensor, noise: Tensor | None) -> Tensor:
    return torch.zeros(*obs.shape[:3], 2)


def test_figures_of_steps_that_go_on_equal_those_of_a_loop() -> None:
    source = FixedLengthCollector(ENV, lone, FixedLengthConfig(3, 7, 8), Streams([5]), Runtime(), tally=True)
    lengths, batch = [], source.next().data
    for world in range(3):
        steps = 0
        for t in range(7):
            steps += 1
            if batch.ended[0, t, world].all():
                lengths.append(steps if batch.terminated[0, t, world].all() else 5)
                steps = 0
    assert lengths
    assert [float(each) for each in source.figures().values()] == pytest.approx(mean_of(lengths))


def lone(obs: Tensor, noise: Tensor | None) -> Tensor:
    return torch.zeros(*obs.shape[:3], 1)


def test_worlds_keep_no_tally_unless_asked() -> None:
    assert autoreset.start_worlds(ENV, torch.zeros(3, 1)).tally is None
    assert start_tally(ENV, torch.zeros(3, 1)).running.shape == (3, 7)


# ---- runs ----

LEARNERS = {"masac": "leader_follower", "mappo": "leader_follower", "coma": "mapping"}


def short(learner: str, **changes: Any) -> Any:
    env = LEARNERS[learner]
    own = {"learner": learner, "log_episodes": True, "updates": 8, "log_every": 4, "checkpoint_every": 2, **changes}
    return configure(env, {"learner": learner}, sizes(env, learner), own)


@pytest.mark.parametrize("learner", LEARNERS)
def test_runs_log_them_and_change_nothing_else(learner: str, tmp_path: Any) -> None:
    whole = train_run(short(learner))
    env = whole.config.env
    names = {f"episode/{metric.name}" for metric in (*env.metrics, *COMMON)}
    rows = [row for row in whole.recorder.rows if names & set(row)]
    assert rows
    assert all(names <= set(row) for row in rows)
    other = train_run(short(learner, log_episodes=False))
    assert torch.equal(whole.learner.parameters(), other.learner.parameters())
    assert not any(name.startswith("episode/") for row in other.recorder.rows for name in row)
    resumed = stop_and_resume(short(learner), tmp_path / "run")
    assert resumed.digest == whole.digest


def test_a_run_resumed_with_an_empty_tally_would_be_noticed(tmp_path: Any) -> None:
    whole = train_run(short("masac"))
    train_run(short("masac", updates=3), tmp_path / "run")
    run = Run.resume(tmp_path / "run", {"updates": 8})
    run.source.worlds.tally.running.zero_()
    for _ in run.train():
        pass
    assert run.digest != whole.digest


def test_overlapped_steps_are_awaited() -> None:
    runs = [train_run(short("masac", prefetch="overlap")) for _ in range(2)]
    assert runs[0].digest == runs[1].digest
    assert any("episode/return" in row for row in runs[0].recorder.rows)
