"""Windows read one by one, as data sets usually are: each scaled by a fitted scaler, collated by a DataLoader."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from uavlab.core.types import Scale
from uavlab.telemetry.dataset import FlightDataset, Windows


class ItemDataset(Dataset):
    """Windows by their first row, each a copy that is normalised when it is read."""

    def __init__(self, flights: FlightDataset, scale: Scale, window: int, horizon: int) -> None:
        """Copy flights that are not normalised, and turn ``scale`` into a fitted scaler."""
        from sklearn.preprocessing import StandardScaler

        self.inputs, self.truth, self.tracking_error = (
            leaf.double().cpu().numpy() for leaf in (flights.inputs, flights.truth, flights.tracking_error)
        )
        self.window, self.horizon = window, horizon
        self.scaler = StandardScaler()
        self.scaler.mean_, self.scaler.scale_ = (each.double().cpu().numpy() for each in (scale.center, scale.spread))
        self.scaler.var_, self.scaler.n_features_in_ = self.scaler.scale_**2, self.inputs.shape[1]

    def __getitem__(self, begin: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return inputs, truth and tracking error of the window that begins with a row."""
        end = begin + self.window
        parts = (
            self.scaler.transform(self.inputs[begin:end]),
            self.truth[end - 1],
            self.tracking_error[end : end + self.horizon],
        )
        inputs, truth, error = (torch.from_numpy(part.astype(np.float32)) for part in parts)
        return inputs, truth, error


def load_batches(items: ItemDataset, starts: Iterator[list[int]], workers: int, pin: bool) -> Iterator[Windows]:
    """Yield batches of windows by their first rows; each of ``workers`` processes reads two batches ahead."""
    kind: dict[str, Any] = {"persistent_workers": True, "prefetch_factor": 2} if workers else {}
    loader = DataLoader(items, batch_sampler=starts, num_workers=workers, pin_memory=pin, **kind)
    return (Windows(*parts) for parts in loader)
