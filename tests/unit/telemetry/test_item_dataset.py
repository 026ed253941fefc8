"""Windows read one by one equal those that were normalised at once, with and without workers."""

import numpy as np
import pytest
import torch
from sklearn.preprocessing import StandardScaler

from tests.support.fixtures_telemetry import input_scale, random_dataset
from uavlab.core.types import Scale, leaves, tree_map
from uavlab.telemetry.dataset import window_starts
from uavlab.telemetry.item_dataset import ItemDataset, load_batches

WINDOW, HORIZON = 20, 5
FLIGHTS = random_dataset(70, 45, 60)
SCALE = input_scale(FLIGHTS)
START, _ = window_starts(FLIGHTS.bounds, WINDOW + HORIZON, 1)


def items(scale: Scale = SCALE) -> ItemDataset:
    return ItemDataset(FLIGHTS, scale, WINDOW, HORIZON)


def test_all_windows_equal_those_normalised_at_once() -> None:
    flights = tree_map(torch.clone, FLIGHTS)
    flights.normalise(SCALE)
    at_once = flights.gather(START, WINDOW, HORIZON)
    one_by_one = items()
    assert len(START) == 46 + 21 + 36
    for n, begin in enumerate(START.tolist()):
        inputs, truth, error = one_by_one[begin]
        assert inputs.dtype == truth.dtype == error.dtype == torch.float32
        torch.testing.assert_close(inputs, at_once.inputs[n], rtol=1e-6, atol=1e-6)
        assert torch.equal(truth, at_once.truth[n])
        assert torch.equal(error, at_once.tracking_error[n])


@pytest.mark.parametrize("part", ["center", "spread"])
def test_another_scale_would_be_noticed(part: str) -> None:
    other = Scale(**{**vars(SCALE), part: getattr(SCALE, part) * 1.001 + 1e-5})
    assert (items(other)[0][0] - items()[0][0]).abs().max() > 1e-4


def test_its_scaler_is_the_usual_one() -> None:
    """Fitted by scikit-learn on the same rows, it gives the same numbers."""
    scaler = StandardScaler().fit(FLIGHTS.inputs.double().numpy())
    own = items().scaler
    np.testing.assert_allclose(own.mean_, scaler.mean_, rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(own.scale_, scaler.scale_, rtol=1e-6)
    np.testing.assert_allclose(own.var_, scaler.var_, rtol=1e-6)
    assert own.n_features_in_ == scaler.n_features_in_
    raw = FLIGHTS.inputs[7 : 7 + WINDOW].double().numpy()
    np.testing.assert_allclose(items()[7][0].numpy(), scaler.transform(raw), rtol=1e-5, atol=1e-5)


def test_flights_are_left_as_they_are() -> None:
    before = [leaf.clone() for _, leaf in leaves(FLIGHTS)]
    inputs, _, _ = items()[3]
    inputs.zero_()
    for (name, leaf), old in zip(leaves(FLIGHTS), before, strict=True):
        assert torch.equal(leaf, old), name
    assert items()[3][0].abs().max() > 0


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_batches_come_in_the_order_of_their_starts(workers: int) -> None:
    starts = [[0, 7, 3], [80], [50, 50, 12, 1], [9, 8]]
    batches = list(load_batches(items(), iter(starts), workers, pin=False))
    assert [len(rows.inputs) for rows in batches] == [3, 1, 4, 2]
    one_by_one = items()
    for rows, begins in zip(batches, starts, strict=True):
        for n, begin in enumerate(begins):
            for (name, leaf), value in zip(leaves(rows), one_by_one[begin], strict=True):
                assert torch.equal(leaf[n], value), name


@pytest.mark.parametrize(("workers", "ahead"), [(0, 0), (1, 2), (2, 4)])
def test_each_worker_reads_two_batches_ahead(workers: int, ahead: int) -> None:
    read = []

    def starts():
        for begin in range(50):
            read.append(begin)
            yield [begin]

    batches = load_batches(items(), starts(), workers, pin=False)
    for count in range(4):
        assert len(read) == count + ahead
        next(batches)
