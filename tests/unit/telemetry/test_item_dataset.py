"""Windows one by one equal those that were normalised at once, whoever reads them."""

import numpy as np
import pytest
import torch
from sklearn.preprocessing import StandardScaler

from tests.support.fixtures_telemetry import made_up_series
from uavlab.core.types import leaves, tree_map
from uavlab.telemetry.dataset import FEATURES, Scale, fitted, normalised, starts
from uavlab.telemetry.item_dataset import Asked, Items, brought

WINDOW, HORIZON = 20, 5
FLIGHTS = made_up_series(70, 45, 60)
SCALE = fitted(FLIGHTS.inputs, FEATURES)
START, _ = starts(FLIGHTS.bounds, WINDOW + HORIZON, 1)


def items(scale: Scale = SCALE) -> Items:
    return Items(FLIGHTS, scale, WINDOW, HORIZON)


def test_all_windows_equal_those_normalised_at_once() -> None:
    at_once = normalised(tree_map(torch.clone, FLIGHTS), SCALE).gathered(START, WINDOW, HORIZON)
    one_by_one = items()
    assert len(START) == 46 + 21 + 36
    for n, begin in enumerate(START.tolist()):
        inputs, truth, astray = one_by_one[begin]
        assert inputs.dtype == truth.dtype == astray.dtype == torch.float32
        torch.testing.assert_close(inputs, at_once.inputs[n], rtol=1e-6, atol=1e-6)
        assert torch.equal(truth, at_once.truth[n])
        assert torch.equal(astray, at_once.astray[n])


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
def test_batches_come_in_the_order_they_are_asked_for(workers: int) -> None:
    asked = [[0, 7, 3], [80], [50, 50, 12, 1], [9, 8]]
    found = list(brought(items(), iter(asked), workers, pin=False))
    assert [len(rows.inputs) for rows in found] == [3, 1, 4, 2]
    one_by_one = items()
    for rows, begins in zip(found, asked, strict=True):
        for n, begin in enumerate(begins):
            for (name, leaf), value in zip(leaves(rows), one_by_one[begin], strict=True):
                assert torch.equal(leaf[n], value), name


@pytest.mark.parametrize(("workers", "ahead"), [(0, 0), (1, 2), (2, 4)])
def test_each_worker_asks_for_two_batches_ahead(workers: int, ahead: int) -> None:
    given = []

    def asked():
        for begin in range(50):
            given.append(begin)
            yield [begin]

    batches = brought(items(), asked(), workers, pin=False)
    for count in range(4):
        assert len(given) == count + ahead
        next(batches)


def test_what_is_asked_for_is_handed_on() -> None:
    assert list(Asked(iter([[1, 2], [3]]))) == [[1, 2], [3]]
