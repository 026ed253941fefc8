"""Streams: run r of R equals that run alone, names are independent, states continue."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from uavlab.core.errors import FileError
from uavlab.core.rng import INTEGER_NOISE, Streams, acting_noise, is_shared
from uavlab.core.types import EnvSpec

DRAWS = ("uniform", "normal", "integers")


def draws(rng: Streams, name: str = "act", times: int = 3) -> list[Tensor]:
    return [getattr(rng, kind)(name, 4, 2) for _ in range(times) for kind in DRAWS]


def equal(a: list[Tensor], b: list[Tensor]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def test_run_r_of_many_equals_that_run_alone() -> None:
    seeds = (5, 17, 5, 2**40)
    together = draws(Streams(seeds))
    for r, seed in enumerate(seeds):
        assert equal([t[r : r + 1] for t in together], draws(Streams([seed])))


def test_one_generator_for_all_runs_would_be_noticed() -> None:
    class Shared(Streams):
        def _generator(self, run: int, name: str) -> torch.Generator:
            return super()._generator(0, name)

    together = draws(Shared((5, 17)))
    assert not equal([t[1:] for t in together], draws(Shared((17,))))


def test_same_seed_same_numbers_other_seed_others() -> None:
    assert equal(draws(Streams([1])), draws(Streams([1])))
    assert not equal(draws(Streams([1])), draws(Streams([2])))


def test_names_are_independent() -> None:
    alone, mixed = Streams([1]), Streams([1])
    expected = draws(alone)
    draws(mixed, "other")
    mixed.uniform("third", 1000)
    assert equal(draws(mixed), expected)
    assert not torch.equal(Streams([1]).uniform("a", 8), Streams([1]).uniform("b", 8))


def test_shapes_ranges_and_types() -> None:
    rng = Streams([0, 1], dtype=torch.float64)
    uniform, normal, whole = rng.uniform("u", 1000), rng.normal("n", 4000), rng.integers("i", 1000)
    assert uniform.shape == (2, 1000)
    assert uniform.dtype == normal.dtype == torch.float64
    assert 0 <= uniform.min() < uniform.max() < 1
    assert normal.mean().abs() < 0.1  # 8000 numbers: nine standard errors
    assert whole.dtype == torch.int64
    assert 0 <= whole.min() < 2**59 < whole.max() < INTEGER_NOISE  # 2^59: the high bits vary too
    assert rng.uniform("none", 3, 0).shape == (2, 3, 0)


def test_global_generator_is_left_alone() -> None:
    before = torch.get_rng_state()
    draws(Streams([0]))
    assert torch.equal(torch.get_rng_state(), before)


def test_state_round_trip_continues() -> None:
    rng = Streams([3, 4])
    draws(rng)
    state = rng.state_dict()
    assert set(state) == {"act.0", "act.1", "salt"}
    expected = draws(rng) + draws(rng, "new")
    other = Streams([3, 4])
    draws(other, "late")  # streams opened after the state was taken start afresh on loading
    other.load_state_dict(state)
    assert equal(draws(other) + draws(other, "new"), expected)


def test_names_with_dots_survive_the_round_trip() -> None:
    rng = Streams([3])
    rng.uniform("evaluate.start", 2)
    state = rng.state_dict()
    expected = rng.uniform("evaluate.start", 2)
    other = Streams([3])
    other.load_state_dict(state)
    assert torch.equal(other.uniform("evaluate.start", 2), expected)


@pytest.mark.parametrize("key", ["act.2", "act", "act.x"])
def test_state_of_a_run_that_is_not_here_is_refused(key: str) -> None:
    rng = Streams([3, 4])
    with pytest.raises(FileError) as error:
        rng.load_state_dict({key: torch.Generator().get_state(), "salt": torch.tensor(0)})
    assert str(error.value) == f"Streams: state has stream {key!r}, but this process holds 2 runs."


def test_reopened_streams_are_others_and_keep_apart() -> None:
    rng = Streams([3, 4])
    first = draws(rng)
    rng.reopen(7)
    second = draws(rng)
    assert not equal(first, second)
    assert not torch.equal(second[0][0], second[0][1])
    again = Streams([3, 4])
    again.load_state_dict(rng.state_dict())
    assert equal(draws(again) + draws(again, "new"), draws(rng) + draws(rng, "new"))  # the salt is part of the state
    rng.reopen(0)
    assert equal(draws(rng), first)


def test_noise_to_act_on_is_what_the_team_needs() -> None:
    moves = EnvSpec(3, 7, 1, 9, 1.0, 0, 0, (0, 0, 0), choices=6, team=4, side=5)
    chosen, steered = (acting_noise(Streams([0, 1]), "act", 4, spec) for spec in (moves, replace(moves, choices=0)))
    assert chosen.shape == (2, 4, 3)
    assert 0 <= chosen.min() <= chosen.max() < 1
    assert steered.shape == (2, 4, 3, 1)
    assert steered.min() < 0


def test_ranks_share_the_streams_of_networks_and_scores_alone() -> None:
    ranks = [Streams([5, 6], rank=rank) for rank in range(3)]
    for name in ("actor", "critic", "network", "noisy", "validate", "validate.step"):
        assert is_shared(name)
        assert equal(draws(ranks[0], name), draws(ranks[1], name))
    for name in ("worlds", "act", "step", "replay", "evaluate.step", "actors"):
        assert not is_shared(name)
        first, *others = (draws(rank, name) for rank in ranks)
        assert equal(first, draws(Streams([5, 6]), name))  # rank 0 draws as a process alone
        assert not equal(first, others[0])
        assert not equal(*others)


def test_new_streams_of_a_rank_are_its_own_too() -> None:
    ranks = [Streams([5], rank=rank) for rank in range(2)]
    before = [draws(rank) for rank in ranks]
    for rank in ranks:
        rank.reopen(7)
    after = [draws(rank) for rank in ranks]
    assert not equal(*after)
    assert not any(equal(a, b) for a in before for b in after)
