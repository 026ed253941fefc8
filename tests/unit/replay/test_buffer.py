"""Stores: what choice by chance and choice by priority do with noise, weights and errors.

Replay in host memory gives the very rows that it would give on the device, and never reads or writes too early.
"""

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support.fake_device import CUDA, fake_device
from tests.support.fixtures_config import tiny, train_tiny
from tests.support.named_rows import RUNS, check, draw, named, rows
from uavlab.collectors import off_policy
from uavlab.collectors.off_policy import make_store, replay_bytes
from uavlab.core.errors import ConfigError, FallbackWarning
from uavlab.core.rng import Streams
from uavlab.core.types import Transition, Update, leaves, tree_map
from uavlab.experiment import build
from uavlab.ops import sum_tree
from uavlab.replay import ring
from uavlab.replay.buffer import HostTransfer, Store, Transfer, Uniform, host_transfer
from uavlab.replay.prioritized import ByPriority, PriorityConfig
from uavlab.runtime.runtime import Runtime

CAPACITY = 7
NOISE = torch.tensor([[0, 8, 15, 2**61], [3, 4, 5, 6]])
W, BATCH, SLOTS = 3, 5, 11
EXAMPLE = rows(named(W))


def filled(store: Store, count: int = 5) -> Store:
    store.add(rows(named(count)))
    return store


def by_priority(by: str = "max") -> ByPriority:
    return ByPriority(rows(named(1)), CAPACITY, PriorityConfig(priority_alpha=1.0), by)  # type: ignore[arg-type]


def test_uniform_choice_is_the_rings_own_draw() -> None:
    store = filled(Uniform(rows(named(1)), CAPACITY))
    index, weight = store.choose(NOISE)
    assert index.tolist() == [[0, 3, 0, 2**61 % 5], [3, 4, 0, 1]]
    assert weight is None
    expected, slots = draw(store.ring, NOISE)
    assert torch.equal(slots, index)
    assert torch.equal(store.take(index).obs, expected.obs)
    check(store.take(index), index + 100_000 * torch.arange(RUNS)[:, None])
    assert store.state_dict() == {}


def test_an_empty_store_gives_slot_0() -> None:
    assert Uniform(rows(named(1)), CAPACITY).choose(NOISE)[0].eq(0).all()


@pytest.mark.parametrize(("by", "priority"), [("mean", [[2.0, 0.5], [4.0, 1.0]]), ("max", [[3.0, 1.0], [4.0, 1.5]])])
def test_errors_become_priorities_of_the_rows_they_belong_to(by: str, priority: list[list[float]]) -> None:
    store = filled(by_priority(by))
    error = torch.tensor([[[1.0, -3.0], [0.0, 1.0]], [[-4.0, 4.0], [0.5, 1.5]]])
    store.feedback(torch.tensor([[4, 0], [1, 2]]), Update({}, td_error=error))
    mass = sum_tree.masses(store.tree)[:, :5] / sum_tree.UNIT
    expected = torch.ones(2, 5)
    expected[0, [4, 0]], expected[1, [1, 2]] = torch.tensor(priority)
    assert torch.equal(mass, expected)


def test_weights_undo_what_priorities_do_to_the_mean() -> None:
    store = filled(by_priority())
    store.feedback(torch.tensor([[0], [0]]), Update({}, td_error=torch.full((2, 1, 2), 16.0)))
    index, weight = store.choose(torch.arange(40).expand(2, 40) * 2**55)
    assert weight.amax() == 1
    assert torch.allclose(weight[index == 0], torch.tensor(16**-0.4))  # the correction begins at 0.4
    assert (index == 0).sum(1).tolist() == [32, 32]  # 16 of 20 parts of the mass


def test_a_learner_that_tells_no_errors_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^priorities: the learner returned no td_error; .* priorities=off"):
        filled(by_priority()).feedback(NOISE, Update({}))
    filled(Uniform(rows(named(1)), CAPACITY)).feedback(NOISE, Update({}))


def test_a_store_that_forgets_draws_as_a_new_one() -> None:
    store = filled(by_priority())
    store.feedback(torch.tensor([[0], [0]]), Update({}, td_error=torch.full((2, 1, 2), 16.0)))
    store.forget()
    assert torch.equal(sum_tree.masses(store.tree), sum_tree.masses(by_priority().tree))


def stores(transfer: Transfer) -> tuple[Store, Store]:
    return Uniform(EXAMPLE, SLOTS, transfer), ByPriority(EXAMPLE, SLOTS, PriorityConfig(), "max", transfer)


def add_and_draw(store: Store) -> list[Tensor]:
    """Add and draw for a while; return all that came up."""
    rng, out = Streams(range(RUNS)), []
    for step in range(12):
        store.add(rows(named(W, W * step)))
        index, weight = store.choose(rng.integers("replay", BATCH))
        data = store.take(index)
        store.feedback(index, Update({}, td_error=data.reward.remainder(7.0)))
        out += [index, *([] if weight is None else [weight]), *(leaf for _, leaf in leaves(data))]
    return out + list(store.state_dict().values())


@pytest.mark.parametrize("kind", [0, 1], ids=["uniform", "priority"])
def test_the_rows_are_the_same_wherever_they_are_kept(kind: int) -> None:
    here, there = stores(Transfer())[kind], stores(host_transfer(EXAMPLE, BATCH, Runtime(), pinned=False))[kind]
    for a, b in zip(add_and_draw(here), add_and_draw(there), strict=True):
        assert torch.equal(a, b)
    for (name, a), (_, b) in zip(leaves(here.ring), leaves(there.ring), strict=True):
        assert torch.equal(a, b), name


def test_rows_by_name_survive_both_ways() -> None:
    store = Uniform(EXAMPLE, SLOTS, host_transfer(EXAMPLE, BATCH, Runtime(), pinned=False))
    for step in range(5):  # 15 rows in 11 slots
        store.add(rows(named(W, W * step)))
    index = torch.tensor([[0, 3, 4, 10, 0], [5, 5, 1, 2, 9]])
    names = torch.where(index < 4, index + 11, index) + 100_000 * torch.arange(RUNS)[:, None]
    check(store.take(index), names)


def test_a_batch_stays_as_it_is_when_the_next_is_drawn() -> None:
    def batch_stays(copy: bool) -> bool:
        staging = HostTransfer(EXAMPLE, 2, Runtime(), pinned=False)
        if not copy:
            staging._copy_up = lambda words: words  # type: ignore[method-assign]
        store = Uniform(EXAMPLE, SLOTS, staging)
        store.add(rows(named(W)))
        batch = store.take(torch.tensor([[0, 1], [0, 1]]))
        before = tree_map(torch.clone, batch)
        store.take(torch.tensor([[2, 2], [2, 2]]))
        return all(torch.equal(a, b) for (_, a), (_, b) in zip(leaves(batch), leaves(before), strict=True))

    assert batch_stays(copy=True)
    assert not batch_stays(copy=False)


def test_new_rows_are_packed_on_the_device_and_wait_once() -> None:
    with fake_device(strict=False) as waits:
        example = tree_map(lambda leaf: leaf.to("cuda"), EXAMPLE)
        staging = HostTransfer(example, BATCH, Runtime(CUDA), pinned=False)
        waits.clear()
        staging.put(example)
        assert dict(waits) == {"buffer.py:_downward": 1}


def test_memory_that_cannot_be_pinned_is_recorded_and_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    allocate_words = ring.allocate_words

    def unpinned(*args: Any, pin_memory: bool = False, **options: Any) -> Any:
        if pin_memory:
            raise RuntimeError("CUDA error: out of memory\nand more")
        return allocate_words(*args, **options)

    monkeypatch.setattr(ring, "allocate_words", unpinned)
    rt = Runtime()
    with pytest.warns(
        FallbackWarning, match=r"no memory could be pinned \(CUDA error: out of memory\); ordinary memory is used$"
    ):
        transfer = host_transfer(EXAMPLE, BATCH, rt, pinned=True)
    assert rt.fell_back["placement"].startswith("no memory could be pinned")
    for a, b in zip(add_and_draw(stores(transfer)[0]), add_and_draw(stores(Transfer())[0]), strict=True):
        assert torch.equal(a, b)


def test_other_errors_are_not_taken_for_that(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: Any, **options: Any) -> Transition:
        raise RuntimeError("allocate")

    monkeypatch.setattr(ring, "allocate_words", broken)
    with pytest.raises(RuntimeError, match="allocate"):
        host_transfer(EXAMPLE, BATCH, Runtime(), pinned=False)


class Stream:
    """A device whose copies arrive when the host waits for them, and no earlier."""

    def __init__(self) -> None:
        self.pending: list[Any] = []

    def synchronize(self) -> None:
        for copy in self.pending:
            copy()
        self.pending.clear()

    def record_event(self) -> "Stream":
        return self


@pytest.fixture
def lazy(monkeypatch: pytest.MonkeyPatch) -> tuple[HostTransfer, Stream]:
    """Pinned staging buffers to a device whose copies read their source late."""
    stream, allocate_words = Stream(), ring.allocate_words
    monkeypatch.setattr(
        ring, "allocate_words", lambda *args, pin_memory=False, **options: allocate_words(*args, **options)
    )
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream)
    staging = HostTransfer(EXAMPLE, 2, Runtime(), pinned=True)
    copy_ = Tensor.copy_

    def late_copy(self: Tensor, other: Tensor, non_blocking: bool = False) -> Tensor:
        if non_blocking:
            stream.pending.append(lambda: copy_(self, other))
            return self
        return copy_(self, other)

    def late_to(self: Tensor, device: Any, non_blocking: bool = False, copy: bool = False) -> Tensor:
        assert copy
        out = torch.full_like(self, 1)
        stream.pending.append(lambda: copy_(out, self))
        return out

    monkeypatch.setattr(Tensor, "copy_", late_copy)
    monkeypatch.setattr(Tensor, "to", late_to)
    return staging, stream


def test_the_host_waits_for_copies_down_and_never_overtakes_copies_up(lazy: tuple[HostTransfer, Stream]) -> None:
    staging, stream = lazy
    store = Uniform(EXAMPLE, SLOTS, staging)
    store.add(rows(named(W)))
    first = store.take(torch.tensor([[0, 1], [0, 1]]))
    second = store.take(torch.tensor([[2, 2], [2, 2]]))
    stream.synchronize()
    check(first, torch.tensor([[0, 1], [100_000, 100_001]]))
    check(second, torch.tensor([[2, 2], [100_002, 100_002]]))


def test_a_host_that_does_not_wait_would_be_noticed(lazy: tuple[HostTransfer, Stream]) -> None:
    staging, stream = lazy
    wait, stream.synchronize = stream.synchronize, lambda: None  # type: ignore[method-assign]
    store = Uniform(EXAMPLE, SLOTS, staging)
    store.add(rows(named(W)))
    wait()
    with pytest.raises(AssertionError):
        check(tree_map(lambda leaf: leaf[:, :W], store.ring.rows), named(W))  # read before it had arrived
    store.add(rows(named(W)))
    first = store.take(torch.tensor([[3, 4], [3, 4]]))
    store.take(torch.tensor([[5, 5], [5, 5]]))
    wait()
    with pytest.raises(AssertionError):
        check(first, torch.tensor([[0, 1], [100_000, 100_001]]))  # its buffer was written anew before it had left


@pytest.mark.parametrize("toggles", [{}, {"priorities": "mean"}, {"prefetch": "on"}], ids=str)
def test_a_run_has_one_digest_wherever_its_replay_is_kept(toggles: dict[str, Any]) -> None:
    assert train_tiny(placement="host", **toggles).digest == train_tiny(**toggles).digest


def test_replay_on_the_host_requires_host_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    config = tiny(placement="host", priorities="max")
    requests = []
    monkeypatch.setattr(
        off_policy, "require_memory", lambda needed, what, remedy, device: requests.append((needed, str(device)))
    )
    make_store(config, Streams([0]), build.runtime(config.run, config.toggles))
    assert requests == [(replay_bytes(config.env, config.source, 1) + 8 * 32, "cpu")]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("toggles", [{}, {"priorities": "mean"}, {"prefetch": "on"}], ids=str)
def test_on_a_gpu_the_digest_is_the_same_in_all_three_places(toggles: dict[str, Any]) -> None:
    digests = {train_tiny(device="cuda", placement=p, **toggles).digest for p in ("device", "pinned", "host")}
    assert len(digests) == 1
