"""Cross-play: who plays which group, scores of groups by hand, and what is refused."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

import uavlab as ul
from tests.support.registries import registered_outside
from uavlab.core.errors import ConfigError
from uavlab.core.rng import Streams
from uavlab.evaluation import Planner, Sides, episodes
from uavlab.experiment.config import configure
from uavlab.experiment.cross_play import CrossPlay, cross_play

TINY = {"updates": 1, "worlds": 2, "rollout_steps": 3, "hidden": 8, "epochs": 1, "minibatches": 1}


@ul.tensors
class Counts:
    """Nothing but the number of steps."""

    step: Tensor


@dataclass(frozen=True)
class Sums:
    """Two groups of 2 and 1 agents; each metric is the mean of a group's actions."""

    metrics: ClassVar = (ul.Metric("left", "mean"), ul.Metric("right", "mean"))
    score: ClassVar = {"left": 1.0}
    group_scores: ClassVar = {"left": {"left": 1.0, "right": -0.5}, "right": {"right": 1.0}}
    spec: ClassVar = ul.team_spec(
        ul.Group("left", 2, obs=1, action=1), ul.Group("right", 1, obs=1, action=1), horizon=3, initial_noise=1
    )

    def initial(self, noise: Tensor) -> Counts:
        return Counts(step=torch.zeros_like(noise[:, 0], dtype=torch.int64))

    def transition(self, state: Counts, action: Tensor, noise: Tensor) -> Counts:
        return Counts(step=state.step + 1)

    def observe(self, state: Counts) -> Tensor:
        return state.step[:, None, None].float().expand(-1, 3, -1).clone()

    def reward(self, state: Counts, action: Tensor, after: Counts) -> Tensor:
        return action[..., 0]

    def terminated(self, state: Counts) -> Tensor:
        return (state.step < 0)[:, None].expand(-1, 3)

    def measure(self, state: Counts, action: Tensor, after: Counts) -> dict[str, Tensor]:
        return {"left": action[:, :2, 0].mean(1), "right": action[:, 2, 0]}


@pytest.fixture(scope="module", autouse=True)
def registered() -> Iterator[None]:
    """Register ``sums`` for these tests alone."""
    with registered_outside():
        ul.env("sums")(Sums)
        yield


def always(value: float) -> Any:
    """Return a policy of one number."""
    return lambda obs: torch.full((len(obs), 3, 1), value)


@pytest.fixture(scope="module")
def play() -> CrossPlay:
    return cross_play({"low": always(0.25), "high": always(1.0)}, configure("sums"), 2, 0, False)


def test_every_pairing_by_hand(play: CrossPlay) -> None:
    assert play.groups == ("left", "right")
    left = {("low", "low"): 0.125, ("low", "high"): -0.25, ("high", "low"): 0.875, ("high", "high"): 0.5}
    for (own, others), value in left.items():
        assert play.score("left", own, others)["mean"] == pytest.approx(value), (own, others)
        assert play.score("right", own, others)["mean"] == pytest.approx(0.25 if own == "low" else 1.0)
    assert len(play.rows) == 4  # with two groups, a pairing is one of both
    assert play.rows[1]["figures"]["left"]["mean"] == pytest.approx(0.25)


def test_a_table_for_each_group(play: CrossPlay) -> None:
    lines = repr(play).splitlines()
    assert [line.split()[:4] for line in lines[::3]] == [["score", "of", "left", "by"], ["score", "of", "right", "by"]]
    assert lines[2].split() == ["high", "0.875", "[0.875,", "0.875]", "0.500", "[0.500,", "0.500]"]


def test_each_group_has_its_own_policy_plan_or_memory() -> None:
    env = Sums()

    class Growing:
        """A policy with memory: its action is half the number of earlier steps."""

        def initial(self, runs: int, worlds: int) -> Tensor:
            return torch.zeros(runs, worlds, 3, 1)

        def __call__(self, obs: Tensor, noise: Tensor | None, memory: Tensor) -> tuple[Tensor, Tensor]:
            return memory / 2, memory + 1

    plan = Planner(lambda env, state, noise: torch.full((len(noise), 3, 1), -1.0))
    figures = episodes(env, Sides((Growing(), plan)), Streams([0, 1]), 2)
    assert figures["left"].tolist() == [[0.5, 0.5], [0.5, 0.5]]  # (0 + 1/2 + 1) / 3
    assert figures["right"].tolist() == [[-1, -1], [-1, -1]]


def test_two_policies_draw_their_own_noise() -> None:
    seen: list[Tensor] = []

    def record(obs: Tensor, noise: Tensor) -> Tensor:
        seen.append(noise)
        return noise.clamp(-1, 1)

    episodes(Sums(), Sides((record, record)), Streams([0]), 2)
    assert not torch.equal(seen[0], seen[1])


def test_trained_teams_meet_a_baseline(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    one = ul.train("pursuit", settings={**TINY, "runs": 2}, out=tmp_path / "one", progress=False)
    other = ul.train("pursuit", settings=TINY, seed=5, out=tmp_path / "other", progress=False)
    play = ul.cross_play({"one": one, "other": tmp_path / "other", "chase": "chase"}, episodes=3)
    assert len(play.rows) == 9
    assert len(play.rows[0]["figures"]["caught"]["each"]) == 2  # seeds; the run with one seed meets both
    assert set(play.score("evaders", "chase", "other")) == {"mean", "low", "high"}
    copies = ul.cross_play({"a": other, "b": other}, episodes=3)
    assert len({row["figures"]["caught"]["mean"] for row in copies.rows}) == 1  # equal players, equal episodes


def test_intervals_are_over_seeds_of_those_that_have_several_alone() -> None:
    """Baselines, and a run of one seed, meet in one sample of all episodes, not in two "seeds"."""
    two = ul.train("pursuit", settings={**TINY, "runs": 2}, progress=False)
    one = ul.train("pursuit", settings=TINY, seed=5, progress=False)
    play = ul.cross_play({"two": two, "one": one, "random": "random"}, episodes=20)
    figures = {(*row["players"].values(),): row["figures"] for row in play.rows}
    for pairing, own in figures.items():
        seeds, count = (2, "20 episodes") if "two" in pairing else (0, "40 episodes")
        assert (len(own["caught"].get("each", ())), own.count) == (seeds, count), pairing
    (both,) = [row for row in play.rows if set(row["players"].values()) == {"random"}]
    alone = ul.cross_play({"random": "random"}, "pursuit", episodes=40).rows[0]
    for group in ("pursuers", "evaders"):  # as wide as for as many episodes of one seed; Student's of two is far wider
        reach = [row["scores"][group]["high"] - row["scores"][group]["low"] for row in (both, alone)]
        assert reach[0] == pytest.approx(reach[1], rel=0.5)


@pytest.mark.parametrize(
    ("players", "task", "message"),
    [
        ({}, "pursuit", "at least one"),
        ({"a": "random"}, None, "pass task=PRESET"),
        ({"a": "random"}, "spread", "group_scores, such as pursuit"),
        ({"a": "rondom"}, "pursuit", "did you mean"),
    ],
)
def test_what_cannot_meet_is_refused(players: dict[str, str], task: str | None, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ul.cross_play(players, task, episodes=1)


def test_unequal_numbers_of_seeds_are_refused() -> None:
    runs = {n: ul.train("pursuit", settings={**TINY, "runs": n}, progress=False) for n in (2, 3)}
    with pytest.raises(ConfigError, match=r"runs of \[2, 3\] seeds"):
        ul.cross_play({str(n): run for n, run in runs.items()}, episodes=1)


def test_the_command(tmp_path: Path) -> None:
    from click.testing import CliRunner

    from uavlab.cli.base import cli

    ul.train("pursuit", settings=TINY, out=tmp_path / "one", progress=False)
    arguments = ["cross-play", str(tmp_path / "one"), "--policy", "random", "--episodes", "2", "--which", "last"]
    result = CliRunner().invoke(cli, [*arguments, "--out", str(tmp_path / "record.json")], catch_exceptions=False)
    assert "score of evaders by" in result.output
    record = json.loads((tmp_path / "record.json").read_text())
    assert [row["players"]["pursuers"] for row in record["rows"]] == [str(tmp_path / "one")] * 2 + ["random"] * 2
