"""What loses is shown losing by counts, not by clocks: rows never seen, batches drawn twice."""

import os
from typing import Any

import numpy as np
import pytest

from uavlab.core.errors import ResourceError
from uavlab_lab.lessons.stale_loader import ArrayReplay, read_through_loader


class TestRows:
    def test_a_batch_holds_rows_that_were_written(self) -> None:
        rows = ArrayReplay(capacity=10, batch=50)
        rows.write(3)
        rows.write(4)
        number, data = rows.draw()
        assert set(number) == set(range(7))  # by this seed, all of them
        assert np.array_equal(data[:, 0], number)

    def test_it_draws_without_end(self) -> None:
        rows = ArrayReplay(capacity=4, batch=2)
        rows.write(4)
        drawn = iter(rows)
        assert [len(next(drawn)[0]) for _ in range(3)] == [2, 2, 2]


@pytest.fixture(scope="module")
def measured() -> dict[str, Any]:
    return read_through_loader(steps=10, start=20, new=30, batch=60, workers=2)


class TestBehindALoader:
    def test_workers_never_see_a_row_written_after_they_started(self, measured: dict[str, Any]) -> None:
        newest = {name: [r["newest"] for r in measured["rows"] if r["source"] == name] for name in measured["ms"]}
        assert newest["DataLoader"] == [19] * 10
        assert newest["replay itself"] == sorted(newest["replay itself"])
        assert newest["replay itself"][-1] > 250  # of 320
        assert [r["written"] for r in measured["rows"]] == [
            20 + 30 * step - 1 for step in range(1, 11) for _ in range(2)
        ]

    def test_age_counts_from_when_the_newest_row_was_written(self, measured: dict[str, Any]) -> None:
        ages = [r["age_s"] for r in measured["rows"] if r["source"] == "DataLoader"]
        assert ages == sorted(ages)
        assert ages[0] >= measured["start_s"] > 0

    def test_both_workers_draw_the_same(self, measured: dict[str, Any]) -> None:
        assert measured["repeated"] == pytest.approx(5 / 11)  # 11 batches in turn from two: 6 different ones

    def test_without_workers_it_would_see_them(self) -> None:
        measured = read_through_loader(steps=10, start=20, new=30, batch=60, workers=0)  # the mutant
        assert measured["repeated"] == 0
        assert max(r["newest"] for r in measured["rows"] if r["source"] == "DataLoader") > 250

    def test_workers_that_fail_are_told(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(ArrayReplay, "draw", lambda self: os._exit(1))  # as one that the system killed
        with pytest.raises(ResourceError, match=r"DataLoader: .*exited unexpectedly.*take fewer workers"):
            read_through_loader(steps=1, workers=1)  # of two, the second one would end beyond this line
