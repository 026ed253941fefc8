"""Batches with a fixed share of rows of former stages: which slots are drawn, for each run on its own."""

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support.fixtures_config import stop_and_resume, tiny, train_run
from uavlab.core.errors import ConfigError
from uavlab.core.types import Transition
from uavlab.experiment.run import Run
from uavlab.replay.buffer import ByStage

CAPACITY, BATCH = 20, 10
CURRICULUM: dict[str, Any] = {
    "metric": "formation_strict",
    "stages": [{"obstacle_speed": 0.0, "mark": 0.0, "passes": 1}, {"mark": 1.0, "mix": [0.7, 0.3]}],
}


def rows(number: int, count: int = 4, runs: int = 2) -> Transition:
    """Return rows whose reward is the number of the batch of rows."""
    reward, end = torch.full((runs, count, 1), float(number)), torch.zeros(runs, count, 1, dtype=torch.bool)
    seen = torch.zeros(runs, count, 1, 1)
    return Transition(seen, seen, reward, seen, end, end[..., 0])


def store() -> ByStage:
    return ByStage(rows(0, 1), CAPACITY)


def draw(replay: ByStage, seed: int = 0) -> Tensor:
    """Return the numbers of the rows of a batch (runs, rows)."""
    noise = torch.randint(2**62, (2, BATCH), generator=torch.Generator().manual_seed(seed))
    return replay.take(replay.choose(noise)[0]).reward[..., 0]


def test_shares_are_exact_in_every_batch() -> None:
    replay = store()
    replay.add(rows(1))
    replay.add(rows(2))
    replay.set_former(torch.tensor([0.3, 0.0]), torch.tensor([True, True]))
    replay.add(rows(3))
    for seed in range(20):
        former = (draw(replay, seed) < 3).sum(1)
        assert former.tolist() == [3, 0]


def test_all_rows_of_both_parts_are_drawn_equally_often() -> None:
    replay = store()
    for number in range(7):  # the first two are overwritten
        if number == 4:
            replay.set_former(torch.tensor([0.5, 0.2]), torch.tensor([True, True]))
        replay.add(rows(number))
    each = torch.cat([draw(replay, seed) for seed in range(400)], 1)
    counts = torch.stack([(each == number).double().mean(1) for number in range(7)], 1)
    expected = torch.tensor([[0, 0, 0.25, 0.25, 1 / 6, 1 / 6, 1 / 6], [0, 0, 0.1, 0.1, *[0.8 / 3] * 3]])
    torch.testing.assert_close(counts, expected.double(), rtol=0, atol=0.03)


def test_without_rows_of_one_part_the_other_fills_the_batch() -> None:
    replay = store()
    replay.add(rows(1))
    replay.set_former(torch.tensor([0.5, 0.5]), torch.tensor([True, False]))
    assert draw(replay).unique().tolist() == [1.0]  # nothing of the new stage, nothing of a former one
    for number in range(2, 9):
        replay.add(rows(number))
    assert int(draw(replay).min()) >= 4  # rows of the first stage are overwritten


def test_runs_change_their_stages_on_their_own() -> None:
    replay = store()
    replay.add(rows(1))
    replay.set_former(torch.tensor([0.3, 0.3]), torch.tensor([True, False]))
    replay.add(rows(2))
    assert replay.since.tolist() == [4, 8]
    assert (draw(replay)[0] == 1).sum() == 3


def test_the_state_is_restored() -> None:
    replay, other = store(), store()
    for each in (replay, other):
        each.add(rows(1))
    replay.set_former(torch.tensor([0.3, 0.1]), torch.tensor([True, False]))
    other.load_state_dict(replay.state_dict())
    assert torch.equal(draw(replay), draw(other))
    replay.forget()
    assert replay.since.tolist() == [0, 0]


@pytest.mark.parametrize("prefetch", ["off", "on", "overlap"])
def test_a_run_is_resumed_exactly(tmp_path: Any, prefetch: str) -> None:
    settings = {
        "curriculum": CURRICULUM,
        "obstacle_speed": 10.0,
        "prefetch": prefetch,
        "world_steps": 16,
        "capacity": 256,
    }
    whole = train_run(tiny(**settings), tmp_path / "whole")
    assert whole.source.store.former.tolist() == [pytest.approx(0.3)]
    assert whole.source.share.tolist() == [[0.0, 1.0]]
    assert stop_and_resume(tiny(**settings), tmp_path / "run").digest == whole.digest


def test_priorities_are_refused() -> None:
    with pytest.raises(ConfigError, match="priorities: got mean with a curriculum, whose batches hold fixed shares"):
        Run(tiny(curriculum=CURRICULUM, obstacle_speed=10.0, priorities="mean"))
