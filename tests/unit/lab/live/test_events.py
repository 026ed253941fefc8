"""Short random sequences of events: no exception, one training thread, a folder that goes on; proofs play long ones."""

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.support.live_events import Twice, play
from tests.support.live_runs import watch_threads
from tests.support.registries import registered_outside
from uavlab.experiment.run import Run
from uavlab_lab.live import panel, pictures, trainer

SEQUENCES, EVENTS = 20, 4


@pytest.fixture(autouse=True)
def quick_slices(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(trainer, "SLICE", 1e-9)
    monkeypatch.setattr(trainer, "EVERY", 0.01)
    monkeypatch.setattr(panel, "display", lambda *args, **options: SimpleNamespace(update=lambda copy: None))
    with registered_outside():
        yield


def test_no_sequence_raises_and_each_folder_goes_on(tmp_path: Path) -> None:
    with watch_threads():
        done, _ = play(tmp_path, range(SEQUENCES), EVENTS)
    assert done.total() == SEQUENCES * EVENTS
    assert len(done) > 10  # kinds


def two_threads(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(trainer, "Trainer", Twice)


def an_error_in_a_tick(patch: pytest.MonkeyPatch) -> None:
    line = pictures.status_line
    patch.setattr(pictures, "status_line", lambda trainer: trainer.number if trainer.run.changes else line(trainer))


def a_stop_without_a_checkpoint(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Run, "save", lambda run: None)


@pytest.mark.parametrize("broken", [two_threads, an_error_in_a_tick, a_stop_without_a_checkpoint])
def test_broken_ones_are_caught(broken: Callable[[pytest.MonkeyPatch], None], tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        broken(patch)
        with pytest.raises((AssertionError, AttributeError)), watch_threads():
            play(tmp_path, range(SEQUENCES), EVENTS)
