"""When memory runs out: a batch is cut into more pieces and tried again, with the numbers of one cut so from the start.

What is tried again must not have changed anything. Gradients qualify until an optimizer applies them, and so does every
pure function.
"""

import gc
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import wraps
from itertools import pairwise
from types import MappingProxyType
from typing import Any, TypeVar

import psutil
import torch
from torch import Tensor

from uavlab.core.errors import ConfigError, ResourceError, RetryWarning
from uavlab.core.types import leaves, tree_map
from uavlab.runtime import stage_timer

T = TypeVar("T")
SIGNS = ("out of memory", "allocate memory", "not enough memory", "ALLOC_FAILED")  # how allocators and cuBLAS say it
NOTHING: Mapping[str, int] = MappingProxyType({})


@dataclass(frozen=True)
class Rows:
    """An argument of a function, or a result of it, whose axis ``axis`` counts the rows of the batch.

    Attributes:
        value: A tensor, a tree of tensors, or None.
        axis: The same for every tensor of a tree.
    """

    value: Any
    axis: int


def out_of_memory(error: BaseException) -> bool:
    """Tell whether an allocation was refused, on the CPU or on a GPU."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in SIGNS)


def in_pieces(fn: Callable, pieces: int, *inputs: Any) -> Any:
    """Call ``fn`` on one piece of the batch after the other, at most as many as there are rows.

    ``Rows`` among the inputs are cut. ``Rows`` among the results are put end to end; other tensors must be means over
    rows, and come out as such; tuples and dictionaries may hold both.
    """
    return join([(share, fn(*values)) for share, values in cut(inputs, pieces)])


def retrying(fn: Callable, what: str, ladder: "Ladder") -> Callable:
    """Let ``ladder`` cut the batches of a pure function, which ``what`` names in messages."""

    @wraps(fn)
    def call(*inputs: Any) -> Any:
        return ladder.descend(what, lambda pieces: in_pieces(fn, pieces, *inputs), inputs)

    return call


def cut(inputs: Sequence[Any], pieces: int) -> Iterator[tuple[float, list[Any]]]:
    """Yield each piece's share of the rows, and the inputs with every ``Rows`` replaced by its part."""
    rows = count_rows(inputs) if pieces > 1 else 1
    if rows == 1:
        yield 1.0, [given.value if isinstance(given, Rows) else given for given in inputs]
        return
    pieces = min(pieces, rows)
    for start, end in pairwise(rows * k // pieces for k in range(pieces + 1)):
        yield (end - start) / rows, [_part(given, start, end) for given in inputs]


def _part(given: Any, start: int, end: int) -> Any:
    if not isinstance(given, Rows):
        return given
    if given.value is None:
        return None
    return tree_map(lambda leaf: leaf.narrow(given.axis, start, end - start), given.value)


def join(results: Sequence[tuple[float, Any]]) -> Any:
    """Put the results of pieces together, each given with its share of the rows."""
    (share, first), *others = results
    if isinstance(first, dict):
        return {key: join([(share, each[key]) for share, each in results]) for key in first}
    if isinstance(first, tuple):
        return tuple(join([(share, each[i]) for share, each in results]) for i in range(len(first)))
    if isinstance(first, Rows):
        parts = [each.value for _, each in others]
        return tree_map(lambda *leaf: torch.cat(leaf, first.axis), first.value, *parts) if parts else first.value
    return sum((weight * each for weight, each in others), share * first) if others else first


def count_rows(inputs: Sequence[Any]) -> int:
    """Count the rows of the batch; 1 if no input is marked, for then nothing can be cut.

    Raises:
        ConfigError: Inputs differ in the number of their rows.
    """
    counts = {leaf.shape[given.axis] for given in inputs if isinstance(given, Rows) for leaf in _tensors([given])}
    if len(counts) > 1:
        raise ConfigError(f"Rows: inputs have {sorted(counts)} rows; expected one number. Mark the axis of each right.")
    return counts.pop() if counts else 1


def _tensors(inputs: Sequence[Any]) -> Iterator[Tensor]:
    for given in inputs:
        if isinstance(given, Tensor):
            yield given
        elif isinstance(given, Rows) and given.value is not None:
            yield from (leaf for _, leaf in leaves(given.value))


def reserve(count: int, device: torch.device) -> None:
    """Ask for ``count`` bytes and give them back, so that what follows finds them, or is refused them here."""
    if count:
        torch.empty(count, dtype=torch.uint8, device=device)


def require(needed: int, what: str, remedy: str, device: torch.device) -> None:
    """Refuse what will take at least ``needed`` bytes where fewer are free.

    Raises:
        ResourceError: They are.
    """
    on_cuda = device.type == "cuda"
    free = torch.cuda.mem_get_info(device)[0] if on_cuda else psutil.virtual_memory().available
    if needed > free:
        raise ResourceError(f"{what}: {needed:,} bytes, {free:,} are free on {device}; lower {remedy}.")


def free_cache() -> None:
    """Let go of what nobody uses any more, on the GPU as well."""
    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def capturing() -> bool:
    """Tell whether a CUDA graph is being captured; a build of torch without CUDA may not be asked."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


@dataclass
class Ladder:
    """How finely the batches of one function are cut: finer each time memory is refused, never coarser again.

    Attributes:
        pieces: Pieces of a batch.
        retries: Every retry as a record (``what, phase, from, to``), all ladders of a run in one list.
        phase: What is being done, for messages and records.
    """

    pieces: int = 1
    retries: list[dict[str, Any]] = field(default_factory=list)
    phase: str = "forward"

    def descend(
        self, what: str, attempt: Callable[[int], T], inputs: Sequence[Any], held: Mapping[str, int] = NOTHING
    ) -> T:
        """Call ``attempt(pieces)``, again with twice as many pieces whenever memory is refused, down to single rows.

        Args:
            what: Whose batch it is.
            attempt: Changes nothing unless it returns.
            inputs: What it is given, ``Rows`` among them.
            held: Bytes that are held besides, by name.

        Raises:
            ResourceError: A single row is too much, or a CUDA graph is being captured.
        """
        while True:
            try:
                return attempt(self.pieces)
            except (MemoryError, RuntimeError) as error:
                said = refusal(error)
            # only behind the except block has the failed attempt let go of its tensors
            rows = count_rows(inputs)
            if self.pieces >= rows:
                raise self._exhausted(what, said, inputs, held)
            self._retry(what, said, min(2 * self.pieces, rows))

    def once_more(
        self, what: str, attempt: Callable[[], None], inputs: Sequence[Any], held: Mapping[str, int] = NOTHING
    ) -> None:
        """Do the same where cutting would not help: call ``attempt()`` at most twice."""
        for last in (False, True):
            try:
                return attempt()
            except (MemoryError, RuntimeError) as error:
                said = refusal(error)
            if last:
                raise self._exhausted(what, said, inputs, held)
            self._retry(what, said, self.pieces)

    def _retry(self, what: str, said: str, pieces: int) -> None:
        how = f"{pieces} pieces instead of {self.pieces} from now on" if pieces > self.pieces else "once more"
        warnings.warn(f"{what}: memory was refused in {self.phase}; {how} ({said})", RetryWarning, stacklevel=4)
        self.retries.append({"what": what, "phase": self.phase, "from": self.pieces, "to": pieces})
        self.pieces = pieces
        free_cache()

    def _exhausted(self, what: str, said: str, inputs: Sequence[Any], held: Mapping[str, int]) -> ResourceError:
        given = list(_tensors(inputs))
        device = given[0].device if given else torch.device("cpu")
        sizes = {"inputs": sum(tensor.nbytes for tensor in given), **held, **stage_timer.memory(device)}
        width = max(map(len, sizes))
        table = "\n".join(f"  {name:<{width}} {size:>18,} bytes" for name, size in sizes.items())
        return ResourceError(
            f"{what}: memory was refused in {self.phase} with batches in {self.pieces} pieces ({said}); expected room "
            f"for one row at a time. Held on {device}:\n{table}\nLower hidden, runs or capacity, or free some memory."
        )


def refusal(error: Exception) -> str:
    """Give the first line of what an allocator said; call it in an ``except`` block, any other error is raised again.

    Raises:
        ResourceError: A CUDA graph is being captured, in which nothing can be tried again.
    """
    if not out_of_memory(error):
        raise error
    said = str(error).strip().partition("\n")[0] or type(error).__name__
    if capturing():
        raise ResourceError(
            f"memory was refused while a CUDA graph was captured ({said}); nothing can be tried again there. Set "
            "micro_batches or a smaller batch beforehand, or graph=off."
        ) from error
    return said
