"""Batches with a fixed share of rows of former stages: which slots are drawn, for each run on its own."""

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support.fixtures_config import stop_and_resume, tiny, train_run
from uavlab.core.errors import ConfigError
from uavlab.core.types import Transition
from uavlab.experiment.run import Run
from uavlab.replay.buffer import ByStage, draw_marked

CAPACITY, BATCH = 20, 10
CURRICULUM: dict[str, Any] = {
    "metric": "formation_strict",
    "stages": [{"obstacle_speed": 0.0, "mark": 0.0, "passes": 1}, {"mark": 1.0, "mix": [0.7, 0.3]}],
}


def rows(number: int, stage: list[int] | None = None, count: int = 4) -> Transition:
    """Return rows whose reward is ``number``, of worlds that started at a ``stage`` in each run."""
    reward, end = torch.full((2, count, 1), float(number)), torch.zeros(2, count, 1, dtype=torch.bool)
    seen, at = torch.zeros(2, count, 1, 1), torch.tensor(stage or [0, 0])[:, None].expand(2, count)
    return Transition(seen, seen, reward, seen, end, end[..., 0], stage_number=at)


def store(*stages: list[int], of: type[ByStage] = ByStage) -> ByStage:
    """Return a replay of rows 0, 1, ... of the stages of both runs."""
    replay = of(rows(0, count=1), CAPACITY)
    for number, stage in enumerate(stages):
        replay.add(rows(number, stage))
    return replay


def draw(replay: ByStage, seed: int = 0) -> Tensor:
    """Return the numbers of the rows of a batch (runs, rows)."""
    noise = torch.randint(2**62, (2, BATCH), generator=torch.Generator().manual_seed(seed))
    return replay.take(replay.choose(noise)[0]).reward[..., 0]


class ByTime(ByStage):
    """Broken: rows count as of the present stage if they are among the last ones."""

    def choose(self, noise: Tensor) -> tuple[Tensor, None]:
        late = torch.arange(self.ring.capacity).expand(2, -1) >= self.ring.size - 4
        self.ring.rows.stage_number.copy_(self.stage[:, None] - 1 + late.long())
        return super().choose(noise)


@pytest.mark.parametrize("of", [ByStage, ByTime])
def test_shares_are_exact_in_every_batch(of: type[ByStage]) -> None:
    replay = store([0, 0], [1, 1], [0, 2], of=of)  # a world of the first stage that goes on after a promotion
    replay.set_stage(torch.tensor([1, 2]), torch.tensor([0.3, 0.0]))
    right = all(
        ((each[0] != 1).sum() == 3) and (each[1] == 2).all() for each in (draw(replay, seed) for seed in range(20))
    )
    assert right == (of is ByStage)


def test_all_rows_of_both_parts_are_drawn_equally_often() -> None:
    replay = store(*[[0, 0]] * 4, *[[1, 2]] * 3)  # the first two are overwritten
    replay.set_stage(torch.tensor([1, 2]), torch.tensor([0.5, 0.2]))
    each = torch.cat([draw(replay, seed) for seed in range(400)], 1)
    counts = torch.stack([(each == number).double().mean(1) for number in range(7)], 1)
    expected = torch.tensor([[0, 0, 0.25, 0.25, 1 / 6, 1 / 6, 1 / 6], [0, 0, 0.1, 0.1, *[0.8 / 3] * 3]])
    torch.testing.assert_close(counts, expected.double(), rtol=0, atol=0.03)


def test_without_rows_of_one_part_the_other_fills_the_batch() -> None:
    replay = store([0, 1])
    replay.set_stage(torch.tensor([1, 1]), torch.tensor([0.5, 0.5]))
    assert draw(replay).unique().tolist() == [0.0]  # nothing of the new stage, nothing of a former one


def test_rows_of_a_later_stage_are_not_drawn_after_a_fallback() -> None:
    replay = store([0, 0], [1, 1], [2, 2])
    replay.set_stage(torch.tensor([1, 2]), torch.tensor([0.3, 0.3]))
    first, second = draw(replay)
    assert sorted(first.unique().tolist()) == [0.0, 1.0]
    assert (second == 2).sum() == 7
    replay = store([1, 0])
    replay.set_stage(torch.tensor([0, 0]), torch.tensor([0.0, 0.0]))
    assert draw(replay).unique().tolist() == [0.0]  # there are no others


def test_slots_that_were_not_written_are_not_drawn() -> None:
    replay = store([1, 1])
    replay.ring.rows.reward[:, 4:] = 9.0  # of stage 0, as all blank rows
    replay.set_stage(torch.tensor([1, 0]), torch.tensor([0.5, 0.0]))
    assert draw(replay).unique().tolist() == [0.0]


def test_marked_slots_by_hand() -> None:
    mark = torch.tensor([[False, True, False, True], [True, True, True, False], [False] * 4])
    slots = draw_marked(mark, torch.arange(6).expand(3, 6))
    assert slots[:2].tolist() == [[1, 3, 1, 3, 1, 3], [0, 1, 2, 0, 1, 2]]
    assert ((slots[2] >= 0) & (slots[2] < 4)).all()


def test_the_state_is_restored() -> None:
    replay, other = store([0, 0], [1, 1]), store([0, 0], [1, 1])
    replay.set_stage(torch.tensor([1, 0]), torch.tensor([0.3, 0.1]))
    assert not torch.equal(draw(replay), draw(other))
    other.load_state_dict(replay.state_dict())
    assert torch.equal(draw(replay), draw(other))


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
    assert whole.source.share.tolist() == [[pytest.approx(0.3), pytest.approx(0.7)]]
    assert set(whole.source.ring.rows.stage_number.unique().tolist()) == {0, 1}
    assert stop_and_resume(tiny(**settings), tmp_path / "run").digest == whole.digest


@pytest.mark.parametrize("prefetch", ["off", "overlap"])
def test_a_replay_that_is_filled_anew_begins_at_the_present_stage(prefetch: str) -> None:
    """With ``overlap``, too: no thread collects yet, so nothing has to wait for the next round."""
    run = Run(tiny(curriculum=CURRICULUM, obstacle_speed=10.0, prefetch=prefetch))
    run.source.set_stages(torch.tensor([[0.3, 0.7]]), torch.tensor([1]))
    assert run.source.share.tolist() == [[pytest.approx(0.3), pytest.approx(0.7)]]


def test_priorities_are_refused() -> None:
    with pytest.raises(ConfigError, match="priorities: got mean with a curriculum, whose batches hold fixed shares"):
        Run(tiny(curriculum=CURRICULUM, obstacle_speed=10.0, priorities="mean"))
