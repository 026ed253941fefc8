"""Informative mapping: hand-made cases."""

from dataclasses import replace

import pytest
import torch

from tests.missions import SMALL, differ, drawn, moved
from uavlab.core.types import tree_map
from uavlab.envs.mapping import Mapping
from uavlab.ops import grids


def test_published_starts() -> None:
    state, _ = drawn(Mapping(), 2)
    assert state.place[0].tolist() == [[2, 2, 2], [8, 2, 2], [8, 8, 2], [2, 8, 2]]


def test_doubt_is_the_sum_over_the_whole_map() -> None:
    state, generator = drawn(SMALL, 4)
    for _ in range(14):
        _, state = moved(SMALL, state, generator)
        whole = grids.weighted_entropy(grids.belief(state.logits[:, -1], torch.float64)).sum((1, 2))
        torch.testing.assert_close(state.doubt.double(), whole, rtol=1e-5, atol=0)


def test_cells_that_two_uavs_see_count_once() -> None:
    """With two UAVs at one place, what both see is learned twice but lost once."""
    env = replace(SMALL, uavs=2)
    state, _ = drawn(env, 1)
    together = state.place[:, :1].expand(-1, 2, -1)
    doubt = torch.full_like(state.doubt, 0.5 * SMALL.cells**2)
    blank = replace(state, logits=torch.zeros_like(state.logits), mean=torch.zeros_like(state.mean), doubt=doubt)
    after = env._measured(blank, together, torch.full((1, env.step_noise), 0.9))
    whole = grids.weighted_entropy(grids.belief(after.logits[:, -1], torch.float64)).sum((1, 2))
    torch.testing.assert_close(after.doubt.double(), whole, rtol=1e-5, atol=0)


def test_reward_is_that_of_the_measurement_after_or_before_the_move() -> None:
    for lagged in (False, True):
        env = replace(SMALL, lagged=lagged)
        state, generator = drawn(env, 2)
        action, after = moved(env, state, generator)
        paid = (state if lagged else after).gain
        torch.testing.assert_close(env.reward(state, action, after), (22 * paid - 0.5)[:, None].expand(-1, 3))


def test_metrics_by_hand() -> None:
    """Two target cells, one claimed and sure, one unknown: (0 + 1) / 2 bits; one of one claim right: F1 2 / 3."""
    env = Mapping(cells=17, cell=50 / 17, uavs=1)
    state, _ = drawn(env, 1)
    truth, logits = torch.zeros_like(state.truth), torch.full_like(state.logits, -grids.LIMIT)
    truth[0, 3, 4:6] = 1
    logits[0, -1, 3, 4], logits[0, -1, 3, 5] = grids.LIMIT, 0
    judged = env.measure(state, torch.zeros(1, 1), replace(state, truth=truth, logits=logits))
    sure = float(grids.entropy(torch.tensor(1e-4, dtype=torch.float64)))
    assert judged["entropy"].item() == pytest.approx((1 + sure) / 2, abs=1e-5)
    assert judged["f1"].item() == pytest.approx(2 / 3)


def test_missions_do_not_meet() -> None:
    state, generator = drawn(SMALL, 4)
    action, noise = torch.randint(6, (4, 3), generator=generator), torch.rand(4, SMALL.step_noise, generator=generator)
    together = tree_map(lambda leaf: leaf[2:3], SMALL.transition(state, action, noise))
    alone = SMALL.transition(tree_map(lambda leaf: leaf[2:3].clone(), state), action[2:3], noise[2:3])
    differ(alone, together, 0.0)
    assert (together.logits != state.logits[2:3]).any()
