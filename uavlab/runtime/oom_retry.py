"""When memory is refused, split the batch into more pieces and try again.

The result equals that of a batch split this way from the start. The failed attempt must not have changed any state, as
with pure functions, and with gradients until an optimizer applies them.
"""

import gc
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, TypeVar

import psutil
import torch
from torch import Tensor

from uavlab.core.errors import ConfigError, ResourceError, RetryWarning
from uavlab.core.types import tree_map
from uavlab.runtime import stage_timer
from uavlab.runtime.cuda_graph import tree_tensors

T = TypeVar("T")
OOM_MESSAGES = ("out of memory", "allocate memory", "not enough memory", "ALLOC_FAILED")  # of allocators and cuBLAS


@dataclass(frozen=True)
class Rows:
    """An argument or a result of a function in which axis ``axis`` counts the rows of the batch.

    It is split with the batch where memory demands it; other arguments and results are not.

    Attributes:
        value: A tensor, a tree of tensors, or None.
        axis: The axis, the same in every tensor of a tree.
    """

    value: Any
    axis: int


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an allocation was refused, on the CPU or on a GPU."""
    by_message = isinstance(error, RuntimeError) and any(message in str(error) for message in OOM_MESSAGES)
    return by_message or isinstance(error, MemoryError | torch.OutOfMemoryError)


def run_in_pieces(fn: Callable, pieces: int, *inputs: Any) -> Any:
    """Call ``fn`` on ``pieces`` parts of the batch in turn, at most one per row.

    ``Rows`` among the inputs are split. ``Rows`` among the results are concatenated; other tensors must be means over
    rows, and are averaged; tuples and dictionaries may hold both.
    """
    return join_pieces([(share, fn(*values)) for share, values in split_rows(inputs, pieces)])


def split_rows(inputs: Sequence[Any], pieces: int) -> Iterator[tuple[float, list[Any]]]:
    """Yield each piece's share of the rows, and the inputs with every ``Rows`` replaced by its part."""
    rows = count_rows(inputs) if pieces > 1 else 1
    if rows == 1:
        yield 1.0, [part.value if isinstance(part, Rows) else part for part in inputs]
        return
    pieces = min(pieces, rows)
    for start, end in pairwise(rows * k // pieces for k in range(pieces + 1)):
        yield (end - start) / rows, [_narrow(part, start, end) for part in inputs]


def _narrow(part: Any, start: int, end: int) -> Any:
    if not isinstance(part, Rows):
        return part
    if part.value is None:
        return None
    return tree_map(lambda leaf: leaf.narrow(part.axis, start, end - start), part.value)


def join_pieces(results: Sequence[tuple[float, Any]]) -> Any:
    """Join the results of pieces, each with its share of the rows."""
    (share, first), *others = results
    if isinstance(first, dict):
        return {key: join_pieces([(share, each[key]) for share, each in results]) for key in first}
    if isinstance(first, tuple):
        return tuple(join_pieces([(share, each[i]) for share, each in results]) for i in range(len(first)))
    if isinstance(first, Rows):
        parts = [each.value for _, each in others]
        return tree_map(lambda *leaf: torch.cat(leaf, first.axis), first.value, *parts) if parts else first.value
    return sum((weight * each for weight, each in others), share * first) if others else first


def count_rows(inputs: Sequence[Any]) -> int:
    """Count the rows of the batch; 1 if no input is marked as ``Rows``, so that nothing is split."""
    counts = {leaf.shape[part.axis] for part in inputs if isinstance(part, Rows) for leaf in tree_tensors(part)}
    if len(counts) > 1:
        raise ConfigError(f"Rows: inputs have {sorted(counts)} rows; expected one number. Mark the axis of each right.")
    return counts.pop() if counts else 1


def reserve(count: int, device: torch.device) -> None:
    """Allocate ``count`` bytes and free them, so that insufficient memory is reported here and not midway."""
    if count:
        torch.empty(count, dtype=torch.uint8, device=device)


def require_memory(needed: int, what: str, remedy: str, device: torch.device) -> None:
    """Check that ``needed`` bytes are free."""
    if needed > (free := free_memory(device)):
        raise ResourceError(f"{what}: {needed:,} bytes, {free:,} are free on {device}; lower {remedy}.")


def free_memory(device: torch.device) -> int:
    on_cuda = device.type == "cuda"
    return torch.cuda.mem_get_info(device)[0] if on_cuda else psutil.virtual_memory().available


def free_cache() -> None:
    """Collect garbage, and return cached memory of the GPU to its driver."""
    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def is_capturing() -> bool:
    """Return whether a CUDA graph is being captured; false without CUDA."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


@dataclass
class Microbatcher:
    """Splits the batches of one function into pieces: more each time memory is refused, never fewer again.

    Attributes:
        pieces: Pieces of a batch.
        retries: Every retry as a record (``what, phase, from, to``), of all microbatchers of a run in one list.
        phase: The phase under way, for messages and records.
    """

    pieces: int = 1
    retries: list[dict[str, Any]] = field(default_factory=list)
    phase: str = "forward"

    def wrap(self, fn: Callable, what: str) -> Callable:
        """Return a pure function with its batches split; ``what`` is its name in messages."""

        def call(*inputs: Any) -> Any:
            return self.run(what, lambda pieces: run_in_pieces(fn, pieces, *inputs), inputs)

        return call

    def run(
        self,
        what: str,
        attempt: Callable[[int], T],
        inputs: Sequence[Any],
        other_bytes: Mapping[str, int] | None = None,
        split: bool = True,
    ) -> T:
        """Call ``attempt(pieces)``, again with twice as many pieces each time memory is refused, down to single rows.

        Args:
            what: Name of the batch in messages.
            attempt: Changes nothing unless it returns.
            inputs: Arguments of the attempt, ``Rows`` among them.
            other_bytes: Other memory in use, by name.
            split: Whether more pieces need less memory; if not, try once more with the same number.
        """
        first = True
        while True:
            try:
                return attempt(self.pieces)
            except (MemoryError, RuntimeError) as error:
                reason = refusal_reason(error)
            # the tensors of the failed attempt are only free after the except block
            rows = count_rows(inputs)
            exhausted = self.pieces >= rows if split else not first
            if exhausted:
                raise self._exhausted(what, reason, inputs, other_bytes or {})
            self._retry(what, reason, min(2 * self.pieces, rows) if split else self.pieces)
            first = False

    def _retry(self, what: str, reason: str, pieces: int) -> None:
        how = f"{pieces} pieces instead of {self.pieces} from now on" if pieces > self.pieces else "once more"
        warnings.warn(f"{what}: memory was refused in {self.phase}; {how} ({reason})", RetryWarning, stacklevel=4)
        self.retries.append({"what": what, "phase": self.phase, "from": self.pieces, "to": pieces})
        self.pieces = pieces
        free_cache()

    def _exhausted(
        self, what: str, reason: str, inputs: Sequence[Any], other_bytes: Mapping[str, int]
    ) -> ResourceError:
        tensors = list(tree_tensors([part for part in inputs if isinstance(part, Tensor | Rows)]))
        device = tensors[0].device if tensors else torch.device("cpu")
        sizes = {"inputs": sum(tensor.nbytes for tensor in tensors), **other_bytes, **stage_timer.memory(device)}
        width = max(map(len, sizes))
        table = "\n".join(f"  {name:<{width}} {size:>18,} bytes" for name, size in sizes.items())
        return ResourceError(
            f"{what}: memory was refused in {self.phase} with batches in {self.pieces} pieces ({reason}); expected "
            f"room for one row at a time. Held on {device}:\n{table}\n"
            "Lower hidden, runs or capacity, or free some memory."
        )


def refusal_reason(error: Exception) -> str:
    """Return the first line of an allocator's message; raise any other error again, in an ``except`` block."""
    if not is_out_of_memory(error):
        raise error
    reason = str(error).strip().partition("\n")[0] or type(error).__name__
    if is_capturing():
        raise ResourceError(
            f"memory was refused while a CUDA graph was captured ({reason}); nothing can be tried again there. Set "
            "micro_batches or a smaller batch beforehand, or graph=off."
        ) from error
    return reason
