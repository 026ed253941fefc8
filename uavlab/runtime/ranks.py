"""Ranks: the processes that train one run together, each with worlds and replay of its own.

All ranks have the same parameters, because they take the same steps: gradients, and all else that depends on the rows
of every rank, are combined here. A process alone is rank 0 of 1, for which each function is the identity.

When a rank fails, it writes why into the store of the group and leaves, which breaks the collective operation of the
others at once; they read the reason. One that is silent for the time limit is named.
"""

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import wraps
from typing import Annotated, Any, Literal, TypeVar

import torch
from annotated_types import Ge, Le
from jaxtyping import Shaped
from torch import Tensor, distributed

from uavlab.core.errors import RankError
from uavlab.core.installation import program
from uavlab.core.registry import Resume
from uavlab.runtime.oom_retry import is_out_of_memory

F = TypeVar("F", bound=Callable)
Backend = Literal["auto", "gloo", "nccl"]
GRACE_S = 2.0  # in which all ranks answer that can, after a collective operation failed
CARRIERS = ("gloo", "NCCL")  # in messages of errors
TIMED_OUT = ("imed out", "imeout")


@dataclass(frozen=True)
class RankConfig:
    """How several ranks train a run together; one alone has no use for the first three.

    Attributes:
        rank_backend: What carries tensors between ranks: ``auto`` takes nccl where each has a GPU, else gloo.
        rank_timeout_s: Seconds after which a rank that does not answer ends the run; longer than it may be late.
        lr_scale: What multiplies learning rates: 1, the number of ranks, or its square root.
        warmup: Updates in which learning rates rise linearly from near 0; 0 for none.
    """

    rank_backend: Annotated[Backend, Resume.SAME] = "auto"
    rank_timeout_s: Annotated[float, Ge(1), Le(86_400), Resume.SAME] = 120.0
    lr_scale: Annotated[Literal["none", "linear", "sqrt"], Resume.YES] = "none"
    warmup: Annotated[int, Ge(0), Le(10**9), Resume.YES] = 0


@dataclass(frozen=True)
class Ranks:
    """This process among those that train one run.

    Attributes:
        rank: Its number, from 0.
        size: Number of ranks.
    """

    rank: int = 0
    size: int = 1

    def combine(self, tensor: Shaped[Tensor, "*shape"], how: Literal["sum", "max"]) -> Shaped[Tensor, "*shape"]:
        """Return the sum or the maximum of the tensors of all ranks, which must have one shape and type."""
        return tensor

    def from_first(self, tensor: Shaped[Tensor, "*shape"]) -> Shaped[Tensor, "*shape"]:
        """Return the tensor of rank 0."""
        return tensor

    def exchange(self, name: str, value: Any) -> list[Any]:
        """Return the JSON values of all ranks, in their order."""
        return [value]

    def watch(self, fn: F) -> F:
        """Wrap compiled code that combines tensors, so that its errors say which rank failed."""
        return fn

    def note(self, update: int) -> None:
        """Remember the last update of this rank, which errors about other ranks name."""
        return

    def report(self, error: BaseException) -> None:
        """Record why this rank leaves, for the others."""
        return

    def close(self) -> None:
        """Leave the group."""
        return

    @property
    def deserted(self) -> bool:
        """Whether the agent of torchrun that started the ranks has ended."""
        return False

    def sum(self, tensor: Shaped[Tensor, "*shape"]) -> Shaped[Tensor, "*shape"]:
        return self.combine(tensor, "sum")

    def mean(self, tensor: Shaped[Tensor, "*shape"]) -> Shaped[Tensor, "*shape"]:
        return tensor if self.size == 1 else self.combine(tensor, "sum") / self.size

    def max(self, tensor: Shaped[Tensor, "*shape"]) -> Shaped[Tensor, "*shape"]:
        """Return the largest of each number among all ranks."""
        return self.combine(tensor, "max")

    def min(self, tensor: Shaped[Tensor, "*shape"]) -> Shaped[Tensor, "*shape"]:
        """Return the smallest of each number among all ranks."""
        return tensor if self.size == 1 else -self.combine(-tensor, "max")

    def means(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Return the means over all ranks of several tensors of one type, by one operation."""
        if self.size == 1:
            return list(tensors)
        flat = self.mean(torch.cat([tensor.flatten() for tensor in tensors]))
        parts = flat.split([tensor.numel() for tensor in tensors])
        return [part.view(tensor.shape) for part, tensor in zip(parts, tensors, strict=True)]

    def largest(self, *numbers: float) -> list[float]:
        """Return the largest of each number among all ranks."""
        return list(numbers) if self.size == 1 else self.max(torch.tensor(numbers, dtype=torch.float64)).tolist()

    def any(self, flag: bool) -> bool:
        """Return whether the flag of any rank is set."""
        return bool(self.largest(float(flag))[0])

    def wait(self) -> None:
        """Return when all ranks are here."""
        self.largest(0.0)

    def agree(self, text: str) -> bool:
        """Return whether all ranks have the same text."""
        digest = hashlib.sha256(text.encode()).digest()
        numbers = torch.tensor([int.from_bytes(digest[i : i + 6]) for i in range(0, 30, 6)])
        return torch.equal(self.max(numbers), self.min(numbers))

    @contextmanager
    def in_turn(self, first: bool) -> Iterator[None]:
        """Run the block on rank 0 ``first``, and on all others together after it, or the other way round."""
        mine = (self.rank == 0) == first
        if not mine:
            self.wait()
        yield
        if mine:
            self.wait()


ALONE = Ranks()


@dataclass(frozen=True)
class Group(Ranks):
    """A rank of a group of processes that torch connects.

    Attributes:
        store: Texts that all ranks read.
        timeout_s: Seconds after which a rank that does not answer counts as lost.
        parent: The agent of torchrun that started this process; 0 if it was started otherwise.
        names: Of the values that were exchanged so far.
        last: The last update of this rank, if any.
    """

    store: Any = None
    timeout_s: float = 120.0
    parent: int = field(default_factory=lambda: os.getppid() if "TORCHELASTIC_RUN_ID" in os.environ else 0)
    names: list[str] = field(default_factory=list)
    last: list[int] = field(default_factory=list)

    def combine(self, tensor: Shaped[Tensor, "*shape"], how: Literal["sum", "max"]) -> Shaped[Tensor, "*shape"]:
        """Return the sum or the maximum of the tensors of all ranks (host sync on a CPU)."""
        result = tensor.detach().clone(memory_format=torch.contiguous_format)
        operation = distributed.ReduceOp.SUM if how == "sum" else distributed.ReduceOp.MAX
        if torch.compiler.is_compiling():  # which has an operator of its own for it
            distributed.all_reduce(result, operation)
            return result
        with self._watched():
            distributed.all_reduce(result, operation)
        return result

    def from_first(self, tensor: Shaped[Tensor, "*shape"]) -> Shaped[Tensor, "*shape"]:
        """Return the tensor of rank 0."""
        result = tensor.detach().clone(memory_format=torch.contiguous_format)
        with self._watched():
            distributed.broadcast(result, 0)
        return result

    def exchange(self, name: str, value: Any) -> list[Any]:
        """Return the JSON values of all ranks, in their order."""
        self.names.append(name)
        key = f"{len(self.names)}/{name}"
        with self._watched():
            self.store.set(f"{key}/{self.rank}", json.dumps(value))
        self.wait()
        with self._watched():
            return [json.loads(self.store.get(f"{key}/{rank}")) for rank in range(self.size)]

    def watch(self, fn: F) -> F:
        """Wrap compiled code that combines tensors, so that its errors say which rank failed."""

        @wraps(fn)
        def call(*args: Any) -> Any:
            try:
                return fn(*args)
            except RuntimeError as error:
                if not (isinstance(error, distributed.DistError) or any(name in str(error) for name in CARRIERS)):
                    raise
                raise self._failure(str(error)) from error

        return call  # type: ignore[return-value]

    def note(self, update: int) -> None:
        """Remember the last update of this rank, which errors about other ranks name."""
        self.last[:] = [update]

    def report(self, error: BaseException) -> None:
        """Record why this rank leaves, for the others; the first reason stays."""
        if isinstance(error, RankError):
            return
        code, kind = getattr(error, "exit_code", 1), type(error).__name__
        reason = {"rank": self.rank, "text": f"{kind}: {error}", "exit_code": code}
        with suppress(RuntimeError):
            self.store.compare_set("failed", "", json.dumps(reason))

    def close(self) -> None:
        """Leave the group."""
        with suppress(RuntimeError):
            distributed.destroy_process_group()

    @property
    def deserted(self) -> bool:
        """Whether the agent of torchrun that started the ranks has ended."""
        return self.parent not in (0, os.getppid())

    @contextmanager
    def _watched(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            if is_out_of_memory(error):
                raise
            raise self._failure(str(error)) from error

    def _failure(self, text: str) -> RankError:
        """Return why a collective operation failed: the reason that a rank left, or which ranks are silent."""
        silent: list[int] | None = None
        until = time.monotonic() + GRACE_S
        with suppress(RuntimeError):  # of a store whose process has ended
            self.store.set(f"here/{self.rank}", "")
            while time.monotonic() < until and not self.store.check(["failed"]):
                time.sleep(0.05)
            if self.store.check(["failed"]):
                reason = json.loads(self.store.get("failed"))
                return RankError(f"rank {reason['rank']}: {reason['text']}", reason["exit_code"])
            silent = [rank for rank in range(self.size) if not self.store.check([f"here/{rank}"])]
        late = any(part in text for part in TIMED_OUT)
        what = f"did not answer for {self.timeout_s:g} s" if late else "ended without a reason, as when it is killed"
        if silent is None:
            who = "torchrun, or the process that keeps the ranks' store, is gone: a rank"
        elif silent:
            who = f"rank {', '.join(map(str, silent))}"
        else:
            first, _, _ = text.strip().partition("\n")
            who, what = "all ranks answer", f"but an operation failed ({first})"
        when = f" after update {self.last[0]}" if self.last else ""
        longer = ", with a larger rank_timeout_s if a rank may be so late" if late else ""
        return RankError(
            f"{who} {what}; this is rank {self.rank} of {self.size}{when}. Go on from the newest checkpoint of all "
            f"ranks: `{launcher()} resume RUN`{longer}."
        )


def launcher() -> str:
    """Return how a command of several ranks begins."""
    own = program()
    return f"torchrun --nproc-per-node=N {'-m uavlab' if own == 'uavlab' else own.removeprefix('python ')}"
