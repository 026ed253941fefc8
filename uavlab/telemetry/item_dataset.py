"""Windows one by one, as data sets are usually read: a scaler called for each, collated by a DataLoader."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from uavlab.telemetry.dataset import Scale, Series, Windows


class Items(Dataset):
    """Every window a copy of its own, normalised when it is asked for."""

    def __init__(self, flights: Series, scale: Scale, window: int, horizon: int) -> None:
        """Take flights as they were logged, and a scaler fitted before."""
        from sklearn.preprocessing import StandardScaler

        self.inputs, self.truth, self.astray = (
            leaf.double().cpu().numpy() for leaf in (flights.inputs, flights.truth, flights.astray)
        )
        self.window, self.horizon = window, horizon
        self.scaler = StandardScaler()
        self.scaler.mean_, self.scaler.scale_ = (each.double().cpu().numpy() for each in (scale.center, scale.spread))
        self.scaler.var_, self.scaler.n_features_in_ = self.scaler.scale_**2, self.inputs.shape[1]

    def __getitem__(self, begin: int) -> tuple[Tensor, Tensor, Tensor]:
        """Give the window that begins with a row."""
        end = begin + self.window
        parts = (
            self.scaler.transform(self.inputs[begin:end]),
            self.truth[end - 1],
            self.astray[end : end + self.horizon],
        )
        inputs, truth, astray = (torch.from_numpy(part.astype(np.float32)) for part in parts)
        return inputs, truth, astray


class Asked(Sampler):
    """Hands batches on as they are asked for."""

    def __init__(self, asked: Iterator[list[int]]) -> None:
        self.asked = asked

    def __iter__(self) -> Iterator[list[int]]:
        """Give each once."""
        return self.asked


def brought(items: Items, asked: Iterator[list[int]], workers: int, pin: bool) -> Iterator[Windows]:
    """Bring batch by batch what is asked for, by its first rows; ``workers`` processes ask ahead, twice each."""
    kind: dict[str, Any] = {"persistent_workers": True, "prefetch_factor": 2} if workers else {}
    loader = DataLoader(items, batch_sampler=Asked(asked), num_workers=workers, pin_memory=pin, **kind)
    return (Windows(*parts) for parts in loader)
