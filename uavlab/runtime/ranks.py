"""Ranks: the processes that train one run together, each with worlds and replay of its own, as torchrun starts them.

All ranks have the same parameters, because they take the same steps: gradients, and all else that depends on the rows
of every rank, are combined here. A process alone is rank 0 of 1, for which each function is the identity.

When a rank fails, it tells torchrun why and leaves, which breaks the collective operation of the others at once.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import wraps
from typing import Annotated, Any, Literal, TypeVar

import torch
from annotated_types import Ge, Le
from jaxtyping import Shaped
from torch import Tensor, distributed

from uavlab.core.errors import ConfigError, RankError, ResourceError
from uavlab.core.installation import program
from uavlab.core.registry import Resume
from uavlab.core.text import quote
from uavlab.runtime.oom_retry import is_out_of_memory

F = TypeVar("F", bound=Callable)
Backend = Literal["auto", "gloo", "nccl"]
CARRIERS = ("gloo", "NCCL")  # in messages of errors
TIMED_OUT, IN_USE = ("imed out", "imeout"), ("EADDRINUSE", "ddress already in use")


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
    """This process among those that train one run."""

    rank: int = 0
    size: int = 1

    def combine(self, tensor: Shaped[Tensor, "*shape"], how: Literal["sum", "max"]) -> Shaped[Tensor, "*shape"]:
        """Return the sum or the maximum of the tensors of all ranks, which must have one shape and type."""
        return tensor

    def from_first(self, tensor: Shaped[Tensor, "*shape"]) -> Shaped[Tensor, "*shape"]:
        return tensor

    def exchange(self, name: str, value: Any) -> list[Any]:
        """Return the JSON values of all ranks, in their order."""
        return [value]

    def watch(self, fn: F) -> F:
        """Wrap compiled code that combines tensors, so that its errors say that another rank failed."""
        return fn

    def close(self) -> None:
        """Leave the group."""

    @property
    def deserted(self) -> bool:
        """Whether the agent of torchrun that started the ranks has ended."""
        return False

    def sum(self, tensor: Shaped[Tensor, "*shape"]) -> Shaped[Tensor, "*shape"]:
        return self.combine(tensor, "sum")

    def mean(self, tensor: Shaped[Tensor, "*shape"]) -> Shaped[Tensor, "*shape"]:
        return tensor if self.size == 1 else self.combine(tensor, "sum") / self.size

    def max(self, tensor: Shaped[Tensor, "*shape"]) -> Shaped[Tensor, "*shape"]:
        return self.combine(tensor, "max")

    def min(self, tensor: Shaped[Tensor, "*shape"]) -> Shaped[Tensor, "*shape"]:
        return tensor if self.size == 1 else -self.combine(-tensor, "max")

    def means(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Return the means over all ranks of several tensors of one type, by one operation."""
        if self.size == 1:
            return list(tensors)
        flat = self.mean(torch.cat([tensor.flatten() for tensor in tensors]))
        parts = flat.split([tensor.numel() for tensor in tensors])
        return [part.view(tensor.shape) for part, tensor in zip(parts, tensors, strict=True)]

    def largest(self, *numbers: float) -> list[float]:
        return list(numbers) if self.size == 1 else self.max(torch.tensor(numbers, dtype=torch.float64)).tolist()

    def any(self, flag: bool) -> bool:
        return bool(self.largest(float(flag))[0])

    def wait(self) -> None:
        self.largest(0.0)

    def agree(self, text: str) -> bool:
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
    """A rank of a group of processes that torch connects."""

    store: Any = None  # texts that all ranks read
    timeout_s: float = 120.0
    parent: int = field(  # the agent of torchrun that started this process; 0 if it was started otherwise
        default_factory=lambda: os.getppid() if "TORCHELASTIC_RUN_ID" in os.environ else 0
    )
    names: list[str] = field(default_factory=list)  # of the values that were exchanged so far

    def combine(self, tensor: Shaped[Tensor, "*shape"], how: Literal["sum", "max"]) -> Shaped[Tensor, "*shape"]:
        """Combine the tensors of all ranks (host sync on a CPU)."""
        result = tensor.detach().clone(memory_format=torch.contiguous_format)
        operation = distributed.ReduceOp.SUM if how == "sum" else distributed.ReduceOp.MAX
        if torch.compiler.is_compiling():  # which has an operator of its own for it
            distributed.all_reduce(result, operation)
            return result
        with self._watched():
            distributed.all_reduce(result, operation)
        return result

    def from_first(self, tensor: Shaped[Tensor, "*shape"]) -> Shaped[Tensor, "*shape"]:
        result = tensor.detach().clone(memory_format=torch.contiguous_format)
        with self._watched():
            distributed.broadcast(result, 0)
        return result

    def exchange(self, name: str, value: Any) -> list[Any]:
        self.names.append(name)
        key = f"{len(self.names)}/{name}"
        with self._watched():
            self.store.set(f"{key}/{self.rank}", json.dumps(value))
        self.wait()
        with self._watched():
            return [json.loads(self.store.get(f"{key}/{rank}")) for rank in range(self.size)]

    def watch(self, fn: F) -> F:
        @wraps(fn)
        def call(*args: Any) -> Any:
            try:
                return fn(*args)
            except RuntimeError as error:
                if not (isinstance(error, distributed.DistError) or any(name in str(error) for name in CARRIERS)):
                    raise
                raise self._failure(str(error)) from error

        return call  # type: ignore[return-value]

    def close(self) -> None:
        with suppress(RuntimeError):
            distributed.destroy_process_group()

    @property
    def deserted(self) -> bool:
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
        """Return that a collective operation failed, because another rank ended or does not answer."""
        late = any(part in text for part in TIMED_OUT)
        what = f"did not answer for {self.timeout_s:g} s" if late else "ended"
        longer = ", with a larger rank_timeout_s if a rank may be so late" if late else ""
        return RankError(
            f"another rank {what} ({text.strip().partition(chr(10))[0]}); this is rank {self.rank} of {self.size}. The "
            "rank that failed first, and why, stand at the end of what torchrun prints. Go on from the newest "
            f"checkpoint of all ranks: `{launcher()} resume RUN`{longer}."
        )


def launcher() -> str:
    """Return how a command of several ranks begins."""
    start = program()
    return f"torchrun --nproc-per-node=N {'-m uavlab' if start == 'uavlab' else start.removeprefix('python ')}"


def join(backend: Backend = "auto", timeout_s: float = 120.0, device: str = "auto") -> Ranks:
    """Connect the ranks that torchrun started, and return this one; a process that was started alone is rank 0 of 1.

    Each rank of a machine with several GPUs gets one of its own.
    """
    rank, size = place()
    if size == 1:
        return ALONE
    where = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
    chosen = _backend(backend, device)
    limit = timedelta(seconds=timeout_s)
    try:
        store, _, _ = next(distributed.rendezvous("env://", rank, size, timeout=limit))
        attempt = distributed.PrefixStore(f"uavlab/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
        distributed.init_process_group(chosen, store=attempt, rank=rank, world_size=size, timeout=limit)
    except (RuntimeError, ValueError) as error:
        reason = str(error).strip().partition("\n")[0]
        if any(part in str(error) for part in IN_USE):
            raise ConfigError(
                f"ranks: MASTER_PORT of {where} is in use; expected a free port. Start by torchrun with --standalone, "
                "which finds one, or with --master-port=PORT."
            ) from error
        raise ResourceError(
            f"ranks: rank {rank} of {size} could not be connected at {where} within {timeout_s:g} s ({reason}); start "
            f"all ranks by `{launcher()} train PRESET`."
        ) from error
    return Group(rank, size, store=attempt, timeout_s=timeout_s)


def place() -> tuple[int, int]:
    """Return the number of this process among ranks, and their count, as torchrun set them; 0 and 1 without it."""
    size = _whole("WORLD_SIZE", 1, 2**16, "1")
    if size == 1:
        return 0, 1
    if missing := [name for name in ("RANK", "MASTER_ADDR", "MASTER_PORT") if not os.environ.get(name)]:
        raise ConfigError(
            f"ranks: WORLD_SIZE is {size}, but {', '.join(missing)} is not set; start by `{launcher()} train PRESET`, "
            "or unset WORLD_SIZE."
        )
    _whole("MASTER_PORT", 1, 2**16 - 1)
    return _whole("RANK", 0, size - 1), size


def restarts() -> int:
    """Return how often torchrun has started the ranks again."""
    return _whole("TORCHELASTIC_RESTART_COUNT", 0, 2**31, "0")


def _whole(name: str, least: int, most: int, default: str = "") -> int:
    text = os.environ.get(name, default)
    if not (text.isascii() and text.isdigit() and len(text) < 12 and least <= int(text) <= most):
        raise ConfigError(
            f"ranks: {name} is {quote(text)}; expected a whole number from {least} to {most}, as torchrun sets it: "
            f"start by `{launcher()} train PRESET`."
        )
    return int(text)


def _backend(backend: Backend, device: str) -> str:
    """Return the backend for ``init_process_group``, and choose this rank's GPU."""
    gpus = torch.cuda.device_count() if device != "cpu" and torch.cuda.is_available() else 0
    processes = _whole("LOCAL_WORLD_SIZE", 1, 2**16, "1")
    local = _whole("LOCAL_RANK", 0, 2**16 - 1, "0")
    if backend == "nccl" and (gpus < processes or not distributed.is_nccl_available()):
        raise ConfigError(
            f"rank_backend: nccl needs a GPU for each rank, got {gpus} for {processes} here; use auto or gloo."
        )
    if gpus:
        torch.cuda.set_device(local % gpus)
    fast = gpus >= processes and distributed.is_nccl_available() and backend != "gloo"
    return "cpu:gloo,cuda:nccl" if fast else "gloo"
