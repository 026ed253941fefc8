"""The progress bar passes every update on, prints every score, and is drawn often where a person sees it."""

import logging
import re
import sys
import tempfile
import warnings
from contextlib import nullcontext
from pathlib import Path
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


def test_what_is_compiled_is_shown_while_the_bar_is(capsys: pytest.CaptureFixture[str]) -> None:
    run = Run(tiny(updates=2, evaluate_every=9))
    for _ in watch(run):
        for listener in run.rt.on_compile:
            listener("update")
    assert run.rt.on_compile == []
    out, err = capsys.readouterr()
    assert out.count("compiling first: ") == 1
    assert "compiling update" in err


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


def warned(capsys: pytest.CaptureFixture[str]) -> bool:
    """Train with a warning, and return whether it has a line of its own."""
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = own = lambda message, *where: print(f"warning: {message}", file=sys.stderr)
        for progress in watch(Run(tiny(updates=3, evaluate_every=9))):
            if progress.number == 2:
                warnings.warn("careful", stacklevel=1)
        assert warnings.showwarning is own  # as it was before
    err = capsys.readouterr().err
    assert "warning: careful\n" in err
    return bool(re.search(r"[\r\n]warning: careful\n", err))


def test_a_warning_has_a_line_of_its_own(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert warned(capsys)
    monkeypatch.setattr(progress_bar.tqdm, "external_write_mode", lambda *bar, **options: nullcontext())
    assert not warned(capsys)


@pytest.mark.parametrize(("level", "debug", "info"), [("warning", 0, 0), ("info", 0, 1), ("debug", 3, 1)])
def test_what_is_logged_at_each_level(capsys: pytest.CaptureFixture[str], level: str, debug: int, info: int) -> None:
    settings = {"log_level": level, "updates": 4, "evaluate_every": 2, "checkpoint_every": 9}
    with tempfile.TemporaryDirectory() as folder:
        list(watch(Run(tiny(**settings), Path(folder))))
    err = capsys.readouterr().err
    assert len(re.findall(r"[\r\n]debug: update \d+: .*critic_loss [\d.]+", err)) == debug
    assert len(re.findall(r"[\r\n]info: update 4: saved .*ckpt-\S+, [\d.]+ MiB\n", err)) == info
    assert not logging.getLogger("uavlab").handlers  # as before


def test_a_report_at_an_interval(capsys: pytest.CaptureFixture[str]) -> None:
    run = Run(tiny(updates=7, evaluate_every=2, report_every=3))
    list(watch(run))
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("update ")]
    assert [line.split()[1] for line in lines] == ["3", "6"]
    assert "eval/completion" in lines[1]
    silent = Run(tiny(updates=7, evaluate_every=2))
    list(watch(silent))
    assert "update " not in capsys.readouterr().out.replace("updates", "")
