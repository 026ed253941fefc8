"""Ranks combine tensors in one order, agree on texts and flags, and say which of them failed."""

import json
from typing import Any

import pytest
import torch

from tests.support.lockstep import ThreadRank, together
from uavlab.core.errors import DivergedError, RankError
from uavlab.runtime import ranks as module
from uavlab.runtime.ranks import ALONE, Group


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "GRACE_S", 0.05)


def test_a_rank_alone_gets_back_what_it_gives() -> None:
    x = torch.tensor([1.0, 2.0])
    assert all(each is x for each in (ALONE.sum(x), ALONE.mean(x), ALONE.max(x), ALONE.min(x), ALONE.from_first(x)))
    assert ALONE.means([x])[0] is x
    assert ALONE.largest(3.5, 0) == [3.5, 0]
    assert ALONE.exchange("name", {"a": 1}) == [{"a": 1}]
    assert ALONE.agree("text")
    assert not ALONE.any(False)
    assert not ALONE.deserted
    ALONE.note(3)
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

    def __init__(self, *here: int) -> None:
        self.texts = {f"here/{rank}": b"" for rank in here}

    def set(self, key: str, text: str) -> None:
        self.texts[key] = text.encode()

    def get(self, key: str) -> bytes:
        return self.texts[key]

    def check(self, keys: list[str]) -> bool:
        return all(key in self.texts for key in keys)

    def compare_set(self, key: str, expected: str, text: str) -> None:
        self.texts.setdefault(key, text.encode())


def failure(store: Any, text: str) -> RankError:
    """Return how rank 0 of 3 explains that a collective operation failed after its update 7."""
    group = Group(0, 3, store=store, timeout_s=8.0)
    group.note(6)
    group.note(7)
    with pytest.raises(RankError) as caught, group._watched():
        raise RuntimeError(text)
    return caught.value


def test_the_others_read_why_a_rank_left() -> None:
    store = Store()
    Group(1, 3, store=store).report(DivergedError({"tensor": "q", "value": "nan", "expected": "finite"}, "Stop."))
    Group(2, 3, store=store).report(ValueError("later"))  # the first reason stays
    error = failure(store, "Connection closed by peer")
    assert str(error) == "rank 1: DivergedError: training: q is nan; expected finite. Stop."
    assert error.exit_code == DivergedError.exit_code


def test_what_another_rank_reported_is_not_reported_again() -> None:
    store = Store()
    Group(1, 3, store=store).report(RankError("rank 2: ValueError: x"))
    assert "failed" not in store.texts


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("Connection closed by peer [127.0.0.1]", "ended without a reason, as when it is killed"),
        ("Timed out waiting 8000ms for recv operation", "did not answer for 8 s"),
    ],
)
def test_a_silent_rank_is_named(text: str, what: str) -> None:
    error = failure(Store(2), text)
    assert str(error).startswith(f"rank 1 {what}; this is rank 0 of 3 after update 7. Go on from the newest checkpoint")
    assert ("with a larger rank_timeout_s" in str(error)) is ("did not answer" in what)
    assert error.exit_code == 5


def test_a_broken_operation_of_ranks_that_all_answer_is_none_that_ended() -> None:
    error = failure(Store(1, 2), "\nConnection reset by peer [10.0.0.2]\nmore")
    text = "all ranks answer but an operation failed (Connection reset by peer [10.0.0.2]); this is rank 0 of 3 after"
    assert str(error).startswith(text)
    assert str(failure(Store(), "x")).startswith("rank 1, 2 ended")


def test_a_store_that_is_gone_hides_no_failure() -> None:
    class Gone(Store):
        def set(self, key: str, text: str) -> None:
            raise RuntimeError("Broken pipe")

    text = "torchrun, or the process that keeps the ranks' store, is gone: a rank ended without a reason"
    assert str(failure(Gone(), "Connection reset")).startswith(text)
    Group(0, 3, store=Gone()).report(ValueError("x"))


def test_a_rank_notices_that_its_agent_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    by_hand = Group(0, 2)
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "a")
    by_torchrun = Group(0, 2)
    assert (by_hand.deserted, by_torchrun.deserted) == (False, False)
    monkeypatch.setattr(module.os, "getppid", lambda: 1)
    assert (by_hand.deserted, by_torchrun.deserted) == (False, True)


def test_refused_memory_is_no_failure_of_another_rank() -> None:
    with pytest.raises(RuntimeError, match="out of memory"), Group(0, 2, store=Store())._watched():
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

    watched = Group(0, 3, store=Store()).watch(compiled)
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
