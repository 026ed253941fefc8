"""All structures draw the same rows from the same noise, and the rows of the suite are complete."""

import pytest
import torch

from uavlab.collectors.off_policy import blank_row
from uavlab.core.types import tree_map
from uavlab.envs.autoreset import start_worlds
from uavlab.envs.leader_follower.env import LeaderFollower
from uavlab.ops import sum_tree
from uavlab.replay import prioritized
from uavlab.replay.prioritized import PriorityConfig
from uavlab_lab.suites import replay as suite


def full(capacity: int) -> prioritized.ByPriority:
    env = LeaderFollower(followers=1)
    start = torch.zeros(1, env.spec.initial_noise)
    row = tree_map(lambda leaf: leaf[None], blank_row(env, start_worlds(env, start)))
    replay = prioritized.ByPriority(row, capacity, PriorityConfig())
    sum_tree.fill(replay.tree, torch.randint(1, 2**30, (1, capacity), generator=torch.Generator().manual_seed(0)))
    replay.ring.size.fill_(capacity)
    return replay


@pytest.mark.parametrize("capacity", [1, 2, 100, 128, 20_000])
def test_structures_draw_the_same_rows_before_and_after_new_priorities(capacity: int) -> None:
    replay, generator = full(capacity), torch.Generator().manual_seed(1)
    mass = sum_tree.masses(replay.tree)[0].clone()
    structures = [suite.wide(replay), suite.binary(mass.clone()), suite.cumsum(mass)]
    for _ in range(20):
        noise = torch.randint(2**62, (1, 64), generator=generator)
        first, *others = [structure.draw(noise) for structure in structures]
        assert all(torch.equal(first, other) for other in others)
        slot = torch.randperm(capacity, generator=generator)[None, :64]
        priority = 100 * torch.rand(slot.shape, generator=generator)
        for structure in structures:
            structure.reweight(slot, priority)


def test_replay_suite() -> None:
    record = suite.replay_suite(3, "cpu", capacity=300)
    assert [row["structure"] for row in record["rows"]] == ["wide", "binary", "cumsum", "uniform"]
    for row in record["rows"]:
        assert list(row) == [
            *("structure", "capacity", "batch", "row_bytes", "threads"),
            *("draw_ms", "gather_ms", "reweight_ms", "total_ms", "over_binary", "over_cumsum"),
        ]
        assert (row["capacity"], row["batch"]) == (300, 256)
        assert (row["over_binary"] == 1) is (row["structure"] == "binary")
        # float32: obs 35, action 10, reward 5, next_obs 35 = 85 x 4 bytes; terminated 5 + truncated 1
        assert row["row_bytes"] == 2 * 144 + 40 + 24 + 2 * 8  # whole words
        assert min(row["draw_ms"], row["gather_ms"]) > 0 <= row["reweight_ms"]


def test_a_batch_is_drawn_gathered_and_weighed_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suite, "time_call", lambda call, device: call())
    replay, seen = full(50), []
    structure = suite.Structure(lambda noise: noise % 50, lambda slot, priority: seen.append((slot, priority)))
    _, rows, _ = suite.time_batch(structure, replay)
    slot, priority = seen[0]
    assert torch.equal(rows.reward, replay.ring.rows.reward[:, slot[0]])
    assert slot.shape == priority.shape == (1, 256)
