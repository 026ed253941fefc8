"""Ranks combine tensors in one order, agree on texts and flags, and say that another one failed."""

import json
from typing import Any

import pytest
import torch

from tests.support.lockstep import ThreadRank, together
from uavlab.core.errors import RankError
from uavlab.runtime import ranks as module
from uavlab.runtime.ranks import ALONE, Group


def test_a_rank_alone_gets_back_what_it_gives() -> None:
    x = torch.tensor([1.0, 2.0])
    assert all(each is x for each in (ALONE.sum(x), ALONE.mean(x), ALONE.max(x), ALONE.min(x), ALONE.from_first(x)))
    assert ALONE.means([x])[0] is x
    assert ALONE.largest(3.5, 0) == [3.5, 0]
    assert ALONE.exchange("name", {"a": 1}) == [{"a": 1}]
    assert ALONE.agree("text")
    assert not ALONE.any(False)
    assert not ALONE.deserted
    with ALONE.in_turn(first=True):
        ALONE.wait()


def test_three_ranks_combine_their_numbers() -> None:
    def work(rank: ThreadRank) -> Any:
        x = torch.tensor([float(rank.rank), 10.0 - rank.rank])  # 0 10, 1 9, 2 8
        pair = [x, torch.full((2, 2), float(rank.rank))]
        combined = [each(x).tolist() for each in (rank.sum, rank.mean, rank.max, rank.min, rank.from_first)]
        return combined, [each.tolist() for each in rank.means(pair)], rank.largest(rank.rank, -rank.rank)

    expected = [[3.0, 27.0], [1.0, 9.0], [2.0, 10.0], [0.0, 8.0], [0.0, 10.0]]
    assert together(work, 3) == [(expected, [[1.0, 9.0], [[1.0, 1.0], [1.0, 1.0]]], [2.0, 0.0])] * 3


def test_ranks_agree_on_flags_and_texts() -> None:
    assert together(lambda rank: rank.any(rank.rank == 1)) == [True, True]
    assert together(lambda rank: rank.any(False)) == [False, False]
    assert together(lambda rank: rank.agree("same")) == [True, True]
    assert together(lambda rank: rank.agree(f"{rank.rank}")) == [False, False]
    assert together(lambda rank: rank.exchange("n", rank.rank)) == [[0, 1], [0, 1]]


@pytest.mark.parametrize(("first", "order"), [(True, [0, 1, 1]), (False, [1, 1, 0])])
def test_rank_0_goes_first_or_last(first: bool, order: list[int]) -> None:
    came: list[int] = []

    def work(rank: ThreadRank) -> None:
        with rank.in_turn(first):
            came.append(min(rank.rank, 1))

    together(work, 3)
    assert came == order


class Store:
    """A store in memory."""

    def __init__(self) -> None:
        self.texts: dict[str, bytes] = {}

    def set(self, key: str, text: str) -> None:
        self.texts[key] = text.encode()

    def get(self, key: str) -> bytes:
        return self.texts[key]


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("Connection closed by peer [127.0.0.1]\nmore", "ended (Connection closed by peer [127.0.0.1])"),
        ("Timed out waiting 8000ms for recv operation", "did not answer for 8 s (Timed out waiting 8000ms for recv"),
    ],
)
def test_the_others_say_that_a_rank_failed_and_where_its_reason_is(text: str, what: str) -> None:
    with pytest.raises(RankError) as caught, Group(0, 3, timeout_s=8.0)._watched():
        raise RuntimeError(text)
    message = str(caught.value)
    assert message.startswith(f"another rank {what}")
    assert "this is rank 0 of 3. The rank that failed first, and why, stand at the end of what torchrun" in message
    assert "Go on from the newest checkpoint of all ranks: `torchrun " in message
    assert ("with a larger rank_timeout_s" in message) is ("did not answer" in what)
    assert caught.value.exit_code == 5


def test_a_rank_notices_that_its_agent_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    by_hand = Group(0, 2)
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "a")
    by_torchrun = Group(0, 2)
    assert (by_hand.deserted, by_torchrun.deserted) == (False, False)
    monkeypatch.setattr(module.os, "getppid", lambda: 1)
    assert (by_hand.deserted, by_torchrun.deserted) == (False, True)


def test_refused_memory_is_no_failure_of_another_rank() -> None:
    with pytest.raises(RuntimeError, match="out of memory"), Group(0, 2)._watched():
        raise RuntimeError("CUDA out of memory")


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (RuntimeError("[/gloo/transport/tcp/pair.cc:547] Connection closed by peer"), RankError),
        (torch.distributed.DistBackendError("watchdog"), RankError),
        (RuntimeError("shapes differ"), RuntimeError),
    ],
)
def test_errors_of_compiled_code_are_explained(error: Exception, kind: type[Exception]) -> None:
    def compiled(x: int) -> int:
        if x:
            raise error
        return x

    watched = Group(0, 3).watch(compiled)
    assert watched(0) == 0
    with pytest.raises(kind) as caught:
        watched(1)
    assert type(caught.value) is kind
    assert ALONE.watch(compiled) is compiled


def test_values_are_exchanged_as_json_under_names_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store()
    groups = [Group(rank, 2, store=store) for rank in range(2)]
    monkeypatch.setattr(Group, "wait", lambda self: None)
    store.set("1/n/1", json.dumps([2]))
    store.set("2/n/1", json.dumps([4]))
    assert groups[0].exchange("n", [1]) == [[1], [2]]
    assert groups[0].exchange("n", [3]) == [[3], [4]]
