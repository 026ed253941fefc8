"""The progress bar passes every update on, prints every score, and is drawn often where a person sees it."""

import sys
from types import ModuleType

import pytest

from tests.support.fixtures_config import tiny
from uavlab.experiment import progress_bar
from uavlab.experiment.progress_bar import watch
from uavlab.experiment.run import Run


def test_updates_and_scores(capsys: pytest.CaptureFixture[str]) -> None:
    run = Run(tiny(updates=4, evaluate_every=2))
    assert [progress.number for progress in watch(run)] == [1, 2, 3, 4]
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines] == [["2", "completion"], ["4", "completion"]]


def test_a_run_goes_on_where_it_was_stopped(capsys: pytest.CaptureFixture[str]) -> None:
    run = Run(tiny(updates=4))
    for progress in watch(run):
        if progress.number == 2:
            run.stop()
    assert [progress.number for progress in watch(run)] == [3, 4]
    assert "4/4" in capsys.readouterr().err


@pytest.mark.parametrize(("kernel", "seconds"), [(False, 60), (True, 0.5)])
def test_how_often_it_is_drawn(monkeypatch: pytest.MonkeyPatch, kernel: bool, seconds: float) -> None:
    intervals = []
    monkeypatch.delitem(sys.modules, "ipykernel", raising=False)
    if kernel:
        monkeypatch.setitem(sys.modules, "ipykernel", ModuleType("ipykernel"))
    plain = progress_bar.tqdm

    def bar(**options: float) -> object:
        intervals.append(options["mininterval"])
        return plain(**options)

    monkeypatch.setattr(progress_bar, "tqdm", bar)
    list(watch(Run(tiny(updates=1, evaluate_every=9))))
    assert intervals == [seconds]
