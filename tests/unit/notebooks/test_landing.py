"""The task of the lesson on curricula keeps the contract, pays on pads alone, and its stages are valid."""

import torch

from uavlab.experiment.curriculum import Fallback, parse
from uavlab.testing import check_env
from uavlab_lab.lessons import landing
from uavlab_lab.lessons.landing import CURRICULUM, Landing, State


def test_it_keeps_the_contract() -> None:
    check_env(Landing(), steps=40)


def test_starts_lie_around_the_pads() -> None:
    state = Landing(far=2.0).initial(torch.tensor([[0.0, 0.25]]))
    torch.testing.assert_close(state.offset, torch.tensor([[[2.0, 0.0], [0.0, 2.0]]]), atol=1e-6, rtol=0)


def test_a_step_by_hand() -> None:
    """One UAV comes to its pad, of radius 0.15; the other flies at most 0.1."""
    env, state = Landing(), State(torch.tensor([[[0.2, 0.0], [0.0, 1.0]]]), torch.tensor([0]))
    action = torch.tensor([[[-0.6, 0.0], [0.0, -5.0]]])
    after = env.transition(state, action, torch.zeros(1, 0))
    torch.testing.assert_close(after.offset, torch.tensor([[[0.14, 0.0], [0.0, 0.9]]]))
    assert env.reward(state, action, after).tolist() == [[1.0, 0.0]]
    assert env.measure(state, action, after)["landed"].tolist() == [0.5]
    assert not env.terminated(after).any()


def test_chance_never_finds_the_last_stage_and_finds_the_first_one() -> None:
    """The sum of all steps that point to the pad is what it takes; random ones end near the start."""
    dice = torch.Generator().manual_seed(0)
    landed = {}
    for far in (0.3, 2.0):
        env = Landing(far=far)
        state, paid = env.initial(torch.rand(500, 2, generator=dice)), torch.tensor(0.0)
        for _ in range(env.horizon):
            state = env.transition(state, 2 * torch.rand(500, 2, 2, generator=dice) - 1, torch.zeros(500, 0))
            paid += env.landed(state).sum()
        landed[far] = float(paid)
    assert landed[0.3] > 500
    assert landed[2.0] == 0


def test_stages_are_valid() -> None:
    plan, failing = parse(CURRICULUM, Landing()), parse(landing.failing(), Landing())
    assert [stage.settings["far"] for stage in plan.stages] == [0.3, 0.8, 2.0]
    assert [stage.rate for stage in failing.stages] == [1.0, 100.0, 1.0]
    assert failing.fallback == Fallback(settle=2, failures=2, fallbacks=3, decay=0.3)
    assert plan.stages[1].rate == 1.0  # the other table is as it was


def test_the_best_score_of_several_seeds() -> None:
    class Recorded:
        def rows(self) -> list[dict[str, float]]:
            scores = [(2, 0.1), (2, 0.4), (4, 0.3)]
            return [{"update": at, "eval/landed": score} for at, score in scores] + [{"update": 3, "loss": 1.0}]

    assert landing.best_scores(Recorded()) == {2: 0.4, 4: 0.3}  # type: ignore[arg-type]


def test_the_summary_has_a_row_for_each_stage() -> None:
    table = landing.summary(landing.preset_stages("leader_follower_curriculum")[1])
    assert table.heads[:2] == ["stage", "present"]
    assert [row[:2] for row in table.rows] == [["1", "[1, 1]"], ["2", "[2, 3]"], ["3", "-"]]
