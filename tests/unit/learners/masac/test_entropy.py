"""The target entropy follows the legal moves: against loops over rows, by hand, and in runs whose masks are tight."""

import math
import warnings
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

import uavlab as ul
from tests.support.update_rungs import KINDS, Side
from uavlab.core.errors import TrainingWarning
from uavlab.core.registry import ENVIRONMENTS
from uavlab.core.text import yaml_value
from uavlab.envs.pursuit import Pursuit
from uavlab.learners.masac.masac import excess

MORTAL = Pursuit(pursuers=2, evaders=2, side=3, obstacles=2, horizon=9)  # walls close moves, and evaders end
E = 48


def slopes_by_hand(side: Side, batch: Any, noise: Any, target: float | None, fault: str = "") -> Tensor:
    """Return the slopes of all log temperatures, row after row; ``fault`` names a mistake."""
    learner: Any = side.learners["batched"]
    data, spec = batch.data, side.env.spec
    critic, log_alpha = learner.critic.parameter.detach(), learner.temperature.parameter.detach()
    log_prob = learner.policy_values(learner.actor.parameter.detach(), critic, data.obs, noise.action, own=True)[1]
    slopes = torch.zeros(learner.runs, learner.count, dtype=torch.float64)
    for run in range(learner.runs):
        for agent in range(spec.agents):
            entropies, limits = [], []
            for row in range(data.reward.shape[1]):
                moves = int(data.obs.legal[run, row, agent].sum())
                if (moves > 1 or fault == "rows without a choice") and (
                    data.live[run, row, agent] or fault == "rows after the end"
                ):
                    entropies.append(-float(log_prob[run, agent, row]))
                    limits.append(math.log(spec.choices if fault == "closed moves" else moves))
            goal = fmean(limits) / 4 if target is None else target
            slopes[run, learner.networks[agent]] += fmean(entropies) - goal
    assert log_alpha.shape == (learner.runs * learner.count, 1)
    return slopes


def far(target: float | None, fault: str = "") -> float:
    """Return the largest difference between the slopes of a learner and those by hand, after its first update."""
    side = Side({"batched": KINDS["batched"]}, 4, True, (3, 5), weighted=True, env=MORTAL, target_entropy=target)
    batch, noise = side.next()
    assert not batch.data.live.all()
    data = batch.data
    opened = data.obs.legal | ~data.live[..., None]  # rows after an end do not count, whatever they hold
    batch = replace(batch, data=replace(data, obs=replace(data.obs, legal=opened)))
    assert (batch.data.obs.legal.sum(-1) < MORTAL.spec.choices).any()
    expected = slopes_by_hand(side, batch, noise, target, fault)
    learner = side.learners["batched"]
    learner.update(batch, noise)
    slopes = learner.state_dict()["temperature.exp_avg"] / 0.1  # Adam's mean of gradients after the first
    return float((slopes.view_as(expected) - expected).abs().max())


@pytest.mark.parametrize("target", [None, 0.3])
def test_temperatures_follow_rows_with_a_choice(target: float | None) -> None:
    assert far(target) < 1e-9


@pytest.mark.parametrize("fault", ["closed moves", "rows after the end"])
def test_a_mistake_is_caught(fault: str) -> None:
    assert far(None, fault) > 1e-3


def test_by_hand() -> None:
    """Moves 4, 1, 2 and 2 are legal: three rows count, of the largest entropies log 4, log 2 and log 2."""
    counts = torch.tensor([4, 1, 2, 2])
    legal, moves = (torch.arange(8) < counts[:, None])[None, :, None], torch.full((1, 1), 8.0)
    entropy = torch.tensor([[0.6]])  # a mean over four rows: 0.8 over three
    above, metrics = excess(-entropy, math.log(8) / 4, legal, moves, masked=True)
    assert above.item() == pytest.approx(math.log(16) / 3 / 4 - 0.8)
    assert metrics["entropy_limit"].item() == pytest.approx(math.log(16) / 4)
    assert metrics["target_share"].item() == pytest.approx(0.25)
    above, metrics = excess(-entropy, 1.0, legal, moves, masked=False)
    assert above.item() == pytest.approx(1.0 - 0.8)
    assert metrics["target_share"].item() == pytest.approx(1.0 / (math.log(16) / 3))


@pytest.mark.parametrize("weight", [None, torch.tensor([[[0.0, 0.0, 0.0, 0.0]]])])
def test_an_agent_without_a_choice_leaves_its_temperature(weight: Tensor | None) -> None:
    legal = torch.zeros(1, 4, 1, 3, dtype=torch.bool)
    legal[..., 0] = True
    legal[..., 1] = weight is not None  # a choice, but no live row
    above, metrics = excess(torch.zeros(1, 1), 0.27, legal, torch.full((1, 1), 3.0), True, weight)
    assert [above.item(), metrics["target_share"].item()] == [0, 0]


@pytest.mark.parametrize("rows", [1, 37, 64])
def test_without_masks_no_bit_differs_from_a_fixed_target(rows: int) -> None:
    moves, target = torch.tensor([[5.0], [5.0], [3.0]]), torch.tensor([5.0, 5.0, 3.0]).log() / 4
    legal = (torch.arange(5) < moves).expand(2, rows, 3, 5)
    draw = torch.Generator().manual_seed(rows)
    live = torch.rand(2, 3, rows, generator=draw) < 0.7
    live[..., 0] = True
    log_prob = -torch.rand(2, 3, generator=draw)
    for weight in (None, live / live.float().mean(-1, keepdim=True)):
        assert torch.equal(excess(log_prob, target, legal, moves, True, weight)[0], log_prob + target)


@ul.tensors
class Pairs:
    """A good and another move of each agent, and noise."""

    good: Tensor
    bad: Tensor
    noise: Tensor
    step: Tensor


@dataclass(frozen=True)
class TwoOfMany:
    """Two of many moves are legal at each step; one of them earns 1."""

    metrics: ClassVar = (ul.Metric("hit", "mean"),)
    score: ClassVar = {"hit": 1.0}
    spec: ClassVar = ul.EnvSpec(2, E, 1, 10, 1.0, 4, 4, groups=(0, 0), choices=E)

    def initial(self, noise: Tensor) -> Pairs:
        good = (noise[:, :2] * E).long()
        bad = (good + 1 + (noise[:, 2:] * (E - 1)).long()) % E
        return Pairs(good=good, bad=bad, noise=noise, step=torch.zeros_like(good[:, 0]))

    def transition(self, state: Pairs, action: Tensor, noise: Tensor) -> Pairs:
        after = self.initial(noise)
        return Pairs(good=after.good, bad=after.bad, noise=noise, step=state.step + 1)

    def observe(self, state: Pairs) -> ul.ChoiceObs:
        good, bad = (move[..., None] == torch.arange(E) for move in (state.good, state.bad))
        return ul.ChoiceObs(good.to(state.noise.dtype), good | bad)

    def reward(self, state: Pairs, action: Tensor, after: Pairs) -> Tensor:
        return (action == state.good).to(state.noise.dtype)

    def terminated(self, state: Pairs) -> Tensor:
        return torch.zeros_like(state.good, dtype=torch.bool)

    def measure(self, state: Pairs, action: Tensor, after: Pairs) -> dict[str, Tensor]:
        return {"hit": (action == state.good).to(state.noise.dtype).mean(-1)}


def train(**settings: Any) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the rows of a short run that read alpha, and its warnings."""
    small = {
        "lr": 0.02,
        "critic_lr": 0.02,
        "hidden": 8,
        "batch": 32,
        "worlds": 8,
        "learning_starts": 64,
        "capacity": 1024,
        "n_step": 1,
        "gamma": 0.5,
    }
    often = {"log_every": 2, "evaluate_every": 10, "evaluate_episodes": 1, "device": "cpu"}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run = ul.train(
            TwoOfMany(), learner="masac", updates=60, progress=False, settings={**small, **often, **settings}
        )
    ENVIRONMENTS.pop("TwoOfMany")  # other tests list what is registered
    texts = [str(each.message) for each in caught if each.category is TrainingWarning]
    return [row for row in run.rows() if "alpha" in row], texts


def test_under_tight_masks_a_random_policy_cools_down() -> None:
    """Its entropy is log 2: more than a quarter of it, less than a quarter of log 48."""
    rows, texts = train(alpha_lr=0.02)
    assert rows[0]["entropy"] == pytest.approx(math.log(2), abs=0.05) == rows[0]["entropy_limit"]
    assert rows[-1]["alpha"] < rows[0]["alpha"]
    assert rows[-1]["target_share"] == pytest.approx(0.25)
    assert texts == []


def test_a_target_above_what_masks_allow_is_named_and_its_remedy_works() -> None:
    rows, (text,) = train(target_entropy=0.968)
    assert rows[-1]["alpha"] > rows[0]["alpha"]
    assert "the target entropy is 140 % of the largest one that the legal moves allow" in text
    remedy = text.partition("; try ")[2]
    assert remedy == "target_entropy=null (now 0.968)"
    name, _, value = remedy.split()[0].partition("=")
    assert train(**{name: yaml_value(value, name)})[1] == []


def test_a_hot_policy_under_tight_masks_is_named_and_its_remedy_works() -> None:
    hot = {"alpha": 1000.0, "alpha_lr": 1e-3}
    _, (text,) = train(**hot)
    assert "the policy's entropy stayed at 100 % of its maximum, 0.693 of 0.693 nats" in text
    remedy = text.partition("; try ")[2]
    assert remedy == "alpha=0.1 (now 1e+03) in a new run"
    name, _, value = remedy.split()[0].partition("=")
    rows, _ = train(**hot | {name: yaml_value(value, name)})
    assert rows[-1]["entropy"] < 0.9 * rows[-1]["entropy_limit"]
