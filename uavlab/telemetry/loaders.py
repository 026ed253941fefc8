"""Data sets that do not gather from memory: flights in temporary files, and windows read one by one."""

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from itertools import chain, count, islice
from pathlib import Path
from typing import Any
from weakref import finalize

import numpy as np
import torch
from jaxtyping import Float, Float64, Int
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from uavlab.core.errors import ResourceError
from uavlab.core.types import Scale
from uavlab.telemetry.dataset import FlightDataset, Windows

FIELDS = ("inputs", "truth", "tracking_error")
BLOCK = 100_000  # rows in memory at a time


class DiskDataset:
    """Flights in unnamed temporary files, deleted with the object or the process; read like a ``FlightDataset``.

    Attributes:
        bounds: First row of each flight, and the end of the last.
    """

    def __init__(self, folder: Path | None = None) -> None:
        """Create the files in ``folder``, by default the system's folder for temporary files."""
        self.folder = folder or Path(tempfile.gettempdir())
        with ExitStack() as stack:
            try:
                files = [stack.enter_context(tempfile.TemporaryFile(dir=self.folder)) for _ in FIELDS]
            except OSError as error:
                raise ResourceError(f"{self.folder}: no flights can be kept ({error.strerror}); set TMPDIR.") from error
            self.files = {name: file.fileno() for name, file in zip(FIELDS, files, strict=True)}
            finalize(self, stack.pop_all().close)
        self.widths: dict[str, int] = {}
        self.bounds = torch.zeros(1, dtype=torch.int64)

    @property
    def rows(self) -> int:
        """Rows of all flights."""
        return int(self.bounds[-1])

    def append(self, flights: FlightDataset) -> None:
        for name in FIELDS:
            values = getattr(flights, name).cpu().float().contiguous().numpy()
            self.widths[name] = values.shape[1]
            self._write(name, self.rows, values)
        self.bounds = torch.cat([self.bounds, self.bounds[-1] + flights.bounds[1:].cpu()])

    def statistics(self, fields: Sequence[str]) -> tuple[Float[Tensor, " F"], Float[Tensor, " F"]]:
        """Compute mean and standard deviation of the columns of ``fields``, block by block.

        Source:
            Chan, Golub and LeVeque 1983, "Algorithms for Computing the Sample Variance", eq. 2.1.
        """
        count, mean, total = 0, torch.zeros(()), torch.zeros(())
        for begin in range(0, self.rows, BLOCK):
            values = torch.cat([self._read(name, begin, BLOCK) for name in fields], 1).double()
            own, share = values.mean(0), len(values) / (count + len(values))
            total = total + (values - own).square().sum(0) + (own - mean).square() * count * share
            mean, count = mean + (own - mean) * share, count + len(values)
        return mean, (total / count).sqrt()

    def normalise(self, scale: Scale) -> None:
        """Normalise the inputs in place, block by block."""
        for begin in range(0, self.rows, BLOCK):
            values = self._read("inputs", begin, BLOCK)
            self._write("inputs", begin, values.sub_(scale.center).div_(scale.spread).numpy())

    def gather(self, start: Int[Tensor, " N"], window: int, horizon: int) -> Windows:
        """Read windows by their first rows (host sync)."""
        first = start.tolist()

        def stack(name: str, ahead: int, rows: int) -> Tensor:
            out = torch.empty(len(first), rows, self.widths[name])
            for row, begin in zip(out, first, strict=True):
                self._read_into(name, begin + ahead, row)
            return out

        return Windows(
            inputs=stack("inputs", 0, window),
            truth=stack("truth", window - 1, 1)[:, 0],
            tracking_error=stack("tracking_error", window, horizon),
        )

    def to_memory(self) -> FlightDataset:
        return FlightDataset(**{name: self._read(name, 0, self.rows) for name in FIELDS}, bounds=self.bounds)

    def _read(self, name: str, begin: int, most: int) -> Tensor:
        out = torch.empty(min(most, self.rows - begin), self.widths[name])
        self._read_into(name, begin, out)
        return out

    def _read_into(self, name: str, begin: int, out: Tensor) -> None:
        left, position = out.numpy().data.cast("B"), 4 * self.widths[name] * begin
        while left:
            count = os.preadv(self.files[name], [left], position)
            if not count:
                raise ResourceError(f"{self.folder}: {name} ended early; check the disk and start again.")
            left, position = left[count:], position + count

    def _write(self, name: str, begin: int, values: np.ndarray) -> None:
        left, position = values.data.cast("B"), 4 * self.widths[name] * begin
        try:
            while left:
                count = os.pwrite(self.files[name], left, position)
                left, position = left[count:], position + count
        except OSError as error:
            raise ResourceError(
                f"{self.folder}: cannot be written ({error.strerror}); free space there, or set TMPDIR."
            ) from error


class ItemDataset(Dataset):
    """Windows by their first row, each a copy that is normalised when it is read.

    With ``cached``, rows are normalised once, and windows are views of them.
    """

    def __init__(self, flights: FlightDataset, scale: Scale, window: int, horizon: int, cached: bool = False) -> None:
        """Copy flights that are not normalised."""
        self.inputs, self.truth, self.tracking_error = (
            leaf.double().cpu().numpy() for leaf in (flights.inputs, flights.truth, flights.tracking_error)
        )
        self.window, self.horizon = window, horizon
        self.center, self.spread = (part.double().cpu().numpy() for part in (scale.center, scale.spread))
        self.cached = cached
        if cached:
            self.inputs, self.truth, self.tracking_error = (
                part.astype(np.float32) for part in (self._normal(self.inputs), self.truth, self.tracking_error)
            )

    def __getitem__(self, begin: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return inputs, truth and tracking error of the window whose first row is ``begin``."""
        end = begin + self.window
        parts = [self.inputs[begin:end], self.truth[end - 1], self.tracking_error[end : end + self.horizon]]
        if not self.cached:
            parts = [part.astype(np.float32) for part in (self._normal(parts[0]), *parts[1:])]
        inputs, truth, error = map(torch.from_numpy, parts)
        return inputs, truth, error

    def _normal(self, rows: Float64[np.ndarray, "rows F"]) -> Float64[np.ndarray, "rows F"]:
        return (rows - self.center) / self.spread


def load_batches(
    items: ItemDataset, starts: Iterator[list[int]], workers: int, pin: bool, ahead: int = 2, length: int | None = None
) -> Iterator[Windows]:
    """Yield batches of windows by their first rows; each of ``workers`` processes reads ``ahead`` batches in advance.

    Args:
        items: The windows.
        starts: First rows of the windows of each batch.
        workers: Processes; 0 reads in this one.
        pin: Whether batches are copied to pinned memory.
        ahead: Batches that each process reads in advance.
        length: Batches after which the processes are started anew, for ``starts`` without an end; None for never.
    """
    if length is not None:
        return chain.from_iterable(load_batches(items, islice(starts, length), workers, pin, ahead) for _ in count())
    kind: dict[str, Any] = {"persistent_workers": True, "prefetch_factor": ahead} if workers else {}
    batches = iter(DataLoader(items, batch_sampler=starts, num_workers=workers, pin_memory=pin, **kind))
    # where it is part of a cycle, its queues would be closed before it can end its workers: it would wait 5 s for each
    finalize(batches, tuple, getattr(batches, "_index_queues", ()))
    return (Windows(*parts) for parts in batches)
