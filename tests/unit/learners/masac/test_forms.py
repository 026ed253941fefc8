"""Networks in one form hold the numbers of those in another, so a run may go on in any of them."""

from itertools import pairwise, permutations

import pytest
import torch
from torch import Tensor

from uavlab.experiment.config import configure
from uavlab.experiment.run import Run
from uavlab.learners.masac import masac

FORMS = ("loop", "cached", "merged", "vmap", "batched")
TINY = {"hidden": 8, "batch": 8, "worlds": 4, "learning_starts": 32, "capacity": 64, "updates": 12, "runs": 2}
SCORES = {"evaluate_every": 100, "evaluate_episodes": 1, "checkpoint_every": 100}


def weights(first: int) -> tuple[Tensor, Tensor]:
    """Return a weight of 2 x 2 and a bias of 2 with the numbers from ``first`` on."""
    return torch.arange(first, first + 4.0).view(2, 2), torch.arange(first + 4.0, first + 6.0).view(1, 2)


ROWS = torch.arange(12.0).view(2, 6)  # two networks
SEPARATE = [*weights(0), *weights(6)]
STACKED = [torch.stack(pair) for pair in zip(weights(0), weights(6), strict=True)]
PAIR_SEPARATE = [*weights(0), *weights(6)]  # one pair of critics, one after the other
PAIR_STACKED = [torch.stack(pair)[None] for pair in zip(weights(0), weights(6), strict=True)]


@pytest.mark.parametrize("tensors", [[ROWS], SEPARATE, STACKED])
def test_every_form_has_the_same_rows(tensors: list[Tensor]) -> None:
    assert torch.equal(masac.to_rows(tensors, 2), ROWS)
    assert [torch.equal(a, b) for a, b in zip(masac.from_rows(ROWS, tensors), tensors, strict=True)] == [
        True for _ in tensors
    ]


@pytest.mark.parametrize("tensors", [PAIR_SEPARATE, PAIR_STACKED])
def test_a_pair_of_critics_is_a_row(tensors: list[Tensor]) -> None:
    row = torch.arange(12.0)[None]
    assert torch.equal(masac.to_rows(tensors, 1), row)
    assert all(torch.equal(a, b) for a, b in zip(masac.from_rows(row, tensors), tensors, strict=True))


def state_of(tensors: list[Tensor], step: float) -> dict[str, Tensor]:
    prefixes = [f"{number}." for number in range(len(tensors))] if len(tensors) > 1 else [""]
    state = {}
    for prefix, tensor in zip(prefixes, tensors, strict=True):
        kinds = {"parameter": tensor, "exp_avg": tensor + 100, "exp_avg_sq": tensor + 200}
        state |= {f"{prefix}{kind}": value for kind, value in kinds.items()} | {f"{prefix}step": torch.tensor(step)}
    return state


@pytest.mark.parametrize(("old", "new"), [*permutations(([ROWS], SEPARATE, STACKED), 2)])
def test_a_state_is_converted_with_its_moments_and_steps(old: list[Tensor], new: list[Tensor]) -> None:
    like = state_of([torch.zeros_like(tensor) for tensor in new], 0.0)
    converted, expected = masac.convert(state_of(old, 7.0), like, 2), state_of(new, 7.0)
    assert converted.keys() == expected.keys()
    assert all(torch.equal(converted[name], expected[name]) for name in expected)


@pytest.mark.parametrize("tensors", [[ROWS], STACKED])
def test_each_network_keeps_its_own_count_of_steps(tensors: list[Tensor]) -> None:
    """Network 1 skipped two of seven steps: seven and five among separate tensors, and two behind together."""
    together = {**state_of(tensors, 7.0), "behind": torch.tensor([0.0, 2.0])}
    apart = masac.convert(together, state_of(SEPARATE, 0.0), 2)
    assert [apart[f"{number}.step"].item() for number in range(4)] == [7, 7, 5, 5]
    back = masac.convert(apart, together, 2)
    assert back.keys() == together.keys()
    assert all(torch.equal(back[name], together[name]) for name in together)
    without = {name: tensor for name, tensor in together.items() if name != "behind"}
    assert masac.convert(apart, without, 2).keys() == without.keys()


def test_numbers_of_names_are_in_order() -> None:
    names = {f"{number}.parameter": torch.zeros(1) for number in (10, 2, 0, 1)}
    assert masac.named(names, "parameter") == ["0.parameter", "1.parameter", "2.parameter", "10.parameter"]
    assert sorted(names) != masac.named(names, "parameter")  # the order of text would mix layers


def test_networks_of_other_sizes_are_refused() -> None:
    with pytest.raises(RuntimeError):
        masac.convert(state_of([ROWS], 1.0), state_of([torch.zeros(2, 2)] * 4, 0.0), 2)


def train(update: str, change: dict[str, str] | None = None, **settings: object) -> Run:
    run = Run(configure("leader_follower_quick", TINY, SCORES, {"update": update, **settings}))
    for progress in run.train():
        if progress.number == 6 and change:
            run.change(**change)
    return run


@pytest.mark.parametrize("share", [True, False])
def test_a_run_goes_on_in_any_form(share: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = train("batched", share=share).learner.parameters()
    for old, new in [*pairwise(FORMS), ("batched", "loop"), ("vmap", "cached")]:
        got = train(old, {"update": new}, share=share).learner.parameters()
        assert torch.allclose(got, expected, rtol=0, atol=2e-6), (old, new)
    monkeypatch.setattr(masac, "KINDS", ("parameter", "exp_avg"))  # the broken variant: a moment stays behind
    with pytest.raises(Exception, match="exp_avg_sq"):
        train("batched", {"update": "loop"}, share=share)


def test_one_adam_or_many_have_one_state() -> None:
    expected = train("loop").learner.parameters()
    assert torch.equal(train("loop", {"optimizers": "many"}).learner.parameters(), expected)
