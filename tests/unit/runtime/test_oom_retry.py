"""A batch that memory refuses is split and retried, with the bits of a batch split so from the start."""

import hashlib
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from uavlab.core.errors import ConfigError, ResourceError, RetryWarning
from uavlab.core.types import Scale
from uavlab.runtime import grad_step, oom_retry
from uavlab.runtime.grad_step import GradientStep, Microbatcher, Rows, count_rows, join_metrics, split_rows
from uavlab.runtime.oom_retry import is_out_of_memory
from uavlab.runtime.toggles import Toggles

KINDS: dict[str, Callable[[], Exception]] = {
    "torch": lambda: torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
    "cuda": lambda: RuntimeError("CUDA error: out of memory"),
    "cpu": lambda: RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 8"),
    "python": lambda: MemoryError(),
}


@pytest.mark.parametrize(
    ("error", "is_one"),
    [
        *((make(), True) for make in KINDS.values()),
        (RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 8 bytes."), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), True),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied (2x3 and 4x5)"), False),
        (ValueError("out of memory"), False),
    ],
)
def test_every_way_of_saying_it_is_known(error: Exception, is_one: bool) -> None:
    assert is_out_of_memory(error) is is_one


def test_rows_are_cut_into_nearly_equal_pieces() -> None:
    tree = Scale(center=torch.arange(14).view(2, 7), spread=torch.arange(28).view(2, 7, 2))
    given = [Rows(tree, 1), "as it is", Rows(None, 1), Rows(torch.arange(7), 0)]
    parts = list(split_rows(given, 3))  # 7 * k // 3 = 0, 2, 4, 7
    assert [share for share, _ in parts] == [2 / 7, 2 / 7, 3 / 7]
    assert [values[3].tolist() for _, values in parts] == [[0, 1], [2, 3], [4, 5, 6]]
    assert parts[1][1][0].center.tolist() == [[2, 3], [9, 10]]
    assert parts[2][1][0].spread.shape == (2, 3, 2)
    assert all(values[1:3] == ["as it is", None] for _, values in parts)
    assert len(list(split_rows(given, 100))) == 7  # never an empty piece
    assert [(share, values[2]) for share, values in split_rows(["x", None, 3], 4)] == [(1.0, 3)]  # nothing to be cut


def test_results_are_put_together_by_their_rows() -> None:
    def fn(x: Tensor, factor: int) -> dict[str, Any]:
        return {"doubled": Rows(factor * x, 0), "mean": x.mean(), "tree": Rows(Scale(x, x + 1), 0)}

    x = torch.tensor([1.0, 2.0, 6.0])
    for pieces in (1, 2, 3):  # in two: the means of 1 and of 2 and 6 count 1 and 2 thirds
        metrics = join_metrics([(share, fn(*part)) for share, part in split_rows((Rows(x, 0), 2), pieces)])
        assert metrics["doubled"].tolist() == [2, 4, 12]
        assert metrics["mean"].item() == pytest.approx(3)
        assert metrics["tree"].spread.tolist() == [2, 3, 7]


def test_inputs_with_different_numbers_of_rows_are_refused() -> None:
    wrong = [Rows(torch.zeros(3, 4), 0), Rows(torch.zeros(3, 4), 1)]
    with pytest.raises(ConfigError, match=r"inputs have \[3, 4\] rows; expected one number"):
        count_rows(wrong)


ROWS, FIRST_BAD, UPDATES = 16, 2, 4


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip garbage collection in each of a few hundred retries."""
    monkeypatch.setattr(grad_step, "free_cache", lambda: None)


@dataclass
class Refusals:
    """Memory that refuses more than ``limit`` rows at a time in one phase; in the optimizer, once."""

    phase: str = ""
    limit: int = ROWS
    error: Callable[[], Exception] = MemoryError
    armed: bool = False
    count: int = 0

    def meet(self, phase: str, rows: int) -> None:
        if self.armed and phase == self.phase and rows > self.limit:
            self.count += 1
            self.armed = phase != "optimizer"
            raise self.error()


class Pupil:
    """One network with moving targets: its update has every phase in which memory may be refused."""

    def __init__(self, refusals: Refusals, pieces: int = 1, step: type[GradientStep] = GradientStep) -> None:
        self.refusals, self.stream = refusals, torch.Generator().manual_seed(0)
        self.table = torch.randn(64, 8, generator=self.stream)
        start = torch.randn(8, 5, generator=self.stream) / 3
        self.goal = start.clone()
        self.step = step([[start.requires_grad_()]], 0.01, 1.0, False, Toggles(micro_batches=pieces))
        self.microbatchers = {"sampling": Microbatcher(pieces), "targets": Microbatcher(pieces)}
        self.microbatchers |= dict.fromkeys(("forward", "backward", "optimizer"), self.step.microbatcher)
        self.log: list[Tensor] = []

    def _draw(self, table: Tensor, noise: Tensor) -> Tensor:
        self.refusals.meet("sampling", len(noise))
        return table[noise]

    def _targets(self, goal: Tensor, x: Tensor) -> Tensor:
        self.refusals.meet("targets", len(x))
        return torch.tanh(x @ goal)

    def loss(self, weight: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, dict[str, Any]]:
        self.refusals.meet("forward", len(x))
        out = torch.tanh(x @ weight)
        out.register_hook(lambda gradient: self.refusals.meet("backward", len(gradient)))
        error = (out - y).square().mean(1)
        return error.mean(), {"loss": error.detach().mean(), "each": Rows(error.detach(), 0)}

    def update(self) -> None:
        noise = torch.randint(64, (ROWS,), generator=self.stream)
        with torch.no_grad():
            x = self.microbatchers["sampling"].call(self._draw, "draw", 0, self.table, Rows(noise, 0))
            y = self.microbatchers["targets"].call(self._targets, "targets", 0, self.goal, Rows(x, 0))
        metrics, norm = self.step(self.loss, self.step.parameter, Rows(x, 0), Rows(y, 0))
        with torch.no_grad():
            self.goal.lerp_(-self.step.parameter, 0.1)
        self.log += [metrics["loss"], metrics["each"], norm]

    def digest(self) -> str:
        tensors = [*self.step.state_dict().values(), self.goal, *self.log]
        return hashlib.sha256(b"".join(tensor.numpy().tobytes() for tensor in tensors)).hexdigest()


def disturbed(refusals: Refusals, monkeypatch: pytest.MonkeyPatch, **kind: Any) -> Pupil:
    monkeypatch.setattr(grad_step, "reserve", lambda count, device: refusals.meet("optimizer", ROWS + 1))
    pupil = Pupil(refusals, **kind)
    for number in range(UPDATES):
        refusals.armed = refusals.armed or number == FIRST_BAD
        pupil.update()
    return pupil


def cut_from_the_start(phase: str, pieces: int, first: int = 1) -> Pupil:
    """Use the smaller size from the first refused update on, without a refusal."""
    pupil = Pupil(Refusals(), first)
    for number in range(UPDATES):
        if number == FIRST_BAD:
            pupil.microbatchers[phase].pieces = pieces
        pupil.update()
    return pupil


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("limit", [8, 4, 2, 1])
@pytest.mark.parametrize("phase", ["sampling", "targets", "forward", "backward", "optimizer"])
def test_a_refused_size_ends_in_the_bits_of_the_smaller_one(
    phase: str, limit: int, kind: str, monkeypatch: pytest.MonkeyPatch, proof: Callable[[str, str], None]
) -> None:
    refusals, pieces = Refusals(phase, limit, KINDS[kind]), ROWS // limit
    first = pieces if phase == "optimizer" else 1  # where a smaller size is no remedy
    with pytest.warns(RetryWarning) as messages:
        pupil = disturbed(refusals, monkeypatch, pieces=first)
    steps = [(1, 2), (2, 4), (4, 8), (8, 16)] if phase != "optimizer" else [(first, first)]
    batcher, what = pupil.microbatchers[phase], {"sampling": "draw", "targets": "targets"}.get(phase, "loss")
    named = "forward" if phase in ("sampling", "targets") else phase
    assert batcher.retries == [{"what": what, "phase": named, "from": a, "to": b} for a, b in steps if b <= pieces]
    assert len(messages) == len(batcher.retries) == refusals.count
    assert pupil.digest() == cut_from_the_start(phase, pieces, first).digest()
    proof("memory refused", "80 cases: 5 phases x 4 sizes x 4 kinds, all in the bits of the smaller size")


def test_a_step_that_moves_before_all_gradients_are_there_would_be_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    class Hasty(GradientStep):
        def _piece(self, loss_fn: Callable, values: list[Any], share: float) -> tuple[list[Tensor], dict[str, Any]]:
            result = super()._piece(loss_fn, values, share)
            with torch.no_grad():
                self.parameter.sub_(1e-3 * result[0][0])
            return result

    class Late(Refusals):
        """The second half of a batch is refused."""

        def meet(self, phase: str, rows: int) -> None:
            self.seen = getattr(self, "seen", 0) + (phase == self.phase and self.armed)
            if self.seen == 2:
                super().meet(phase, ROWS + 1)

    for step, same in ((GradientStep, True), (Hasty, False)):
        refusals = Late("forward", 8)
        with pytest.warns(RetryWarning):
            pupil = disturbed(refusals, monkeypatch, pieces=2, step=step)
        assert (pupil.digest() == cut_from_the_start("forward", 4, 2).digest()) is same


def test_any_other_error_is_raised_as_it_is() -> None:
    pupil = Pupil(Refusals("backward", 8, lambda: RuntimeError("shapes differ"), armed=True))
    before = {name: tensor.clone() for name, tensor in pupil.step.state_dict().items()}
    with pytest.raises(RuntimeError, match=r"^shapes differ$"):
        pupil.update()
    assert pupil.step.microbatcher.retries == []
    assert all(torch.equal(tensor, before[name]) for name, tensor in pupil.step.state_dict().items())


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("phase", ["forward", "backward", "optimizer"])
def test_where_nothing_helps_nothing_has_changed(phase: str, monkeypatch: pytest.MonkeyPatch) -> None:
    refusals = Refusals(phase, 0, KINDS["cpu"])
    pupil = Pupil(refusals)
    pupil.update()  # so that there are gradients and moments
    before = {name: tensor.clone() for name, tensor in pupil.step.state_dict().items()}

    def refuse(count: int, device: torch.device) -> None:
        refusals.armed = True
        refusals.meet("optimizer", ROWS)

    monkeypatch.setattr(grad_step, "reserve", refuse)
    refusals.armed = True
    with pytest.warns(RetryWarning) as messages, pytest.raises(ResourceError) as refusal:
        pupil.update()
    assert len(messages) == {"optimizer": 1}.get(phase, 4)  # 2, 4, 8, 16 pieces
    first, *table, last = str(refusal.value).splitlines()
    pieces = 1 if phase == "optimizer" else ROWS
    assert first.startswith(
        f"loss: memory was refused in {phase} with batches in {pieces} pieces ([enforce fail] Default"
    )
    sizes = {line[:14].strip(): int(line[14:].replace(",", "").split()[0]) for line in table}
    assert sizes.pop("resident") > 10**6
    # weight 8 x 5, x 16 x 8, y 16 x 5; parameters and gradients 40 numbers each, two moments
    assert sizes == {"inputs": 4 * (40 + 128 + 80), "parameters": 160, "gradients": 160, "moments": 320}
    assert last == "Lower hidden, runs or capacity, or free some memory."
    assert all(torch.equal(tensor, before[name]) for name, tensor in pupil.step.state_dict().items())
    assert pupil.step.parameter.grad is None


def test_what_has_no_rows_is_not_tried_again() -> None:
    def fn(x: Tensor) -> Tensor:
        raise MemoryError

    with pytest.raises(ResourceError, match=r"act: memory was refused in forward with batches in 1 pieces \(MemoryErr"):
        Microbatcher().call(fn, "act", 0, torch.zeros(9))


class Inside(Microbatcher):
    """A mutant that tries again while the error, and with it the failed attempt, is still alive."""

    def run(self, what: str, attempt: Callable, inputs: Any, other_bytes: Any = None, split: bool = True) -> Any:
        try:
            return attempt(self.pieces)
        except MemoryError:
            self.pieces *= 2
            return self.run(what, attempt, inputs)


@pytest.mark.filterwarnings("ignore::uavlab.core.errors.RetryWarning")
@pytest.mark.parametrize(("batcher", "alive"), [(Microbatcher(), [False, False]), (Inside(), [True, True])])
def test_a_failed_attempt_is_dead_before_the_next(batcher: Microbatcher, alive: list[bool]) -> None:
    seen, survivals = [], []

    def fn(x: Tensor) -> Tensor:
        if seen:
            survivals.append(seen[-1]() is not None)
        activation = (x * 2).exp()
        garbage: list[Any] = [activation]
        garbage.append(garbage)  # which dies only when it is collected
        seen.append(weakref.ref(activation))
        if len(x) > 2:
            raise MemoryError
        return activation

    assert batcher.call(fn, "fn", 0, Rows(torch.zeros(8), 0)).tolist() == [1] * 8
    assert survivals[:2] == alive


def test_inside_a_capture_nothing_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oom_retry, "is_capturing", lambda: True)
    pupil = Pupil(Refusals("forward", 8, KINDS["torch"], armed=True))
    with pytest.raises(ResourceError, match=r"while a CUDA graph was captured \(CUDA out of memory.*micro_batches"):
        pupil.update()
    assert pupil.step.microbatcher.pieces == 1


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_gpu_that_is_full_cuts_batches_and_gives_memory_back() -> None:
    x = torch.randn(2**20, 64, device="cuda")  # 256 MiB
    start = torch.randn(64, 64, device="cuda").requires_grad_()

    def loss(weight: Tensor, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        return torch.tanh(x @ weight).square().mean(1).mean(), {}

    step = GradientStep([[start]], 0.01, 1.0, False, Toggles())
    before = torch.cuda.memory_allocated()
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + 300 * 2**20) / total)
    try:
        with pytest.warns(RetryWarning):
            step(loss, step.parameter, Rows(x, 0))
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert step.microbatcher.pieces > 1
    assert abs(torch.cuda.memory_allocated() - before) < 2**20
