import os
import signal
import threading
import time

import pytest

from uavlab.lab.headless.watchdog import Watch


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


@pytest.mark.parametrize(("timeout_s", "after", "code"), [(5, 5.0, 0), (5, 5.1, 124), (None, 1e9, 0)])
def test_a_cell_has_its_time(clock: list[float], timeout_s: int | None, after: float, code: int) -> None:
    watch = Watch(timeout_s)
    watch.begin()
    clock[0] += after
    assert watch.over() is (code != 0)
    assert watch.code == code


def test_every_cell_has_its_own_time(clock: list[float]) -> None:
    watch = Watch(5)
    for _ in range(3):
        watch.begin()
        clock[0] += 4
        assert not watch.over()
    clock[0] += 4
    assert watch.over()
    watch.begin()  # the cell came to its end all the same
    assert not watch.over()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_the_first_signal_only_leaves_word(number: int, code: int) -> None:
    watch, before = Watch(None), signal.getsignal(number)
    with watch.signals():
        signal.raise_signal(number)
        assert watch.over()
    assert watch.code == code
    assert signal.getsignal(number) is before


def test_a_signal_that_nobody_asked_for_takes_effect_behind_the_block() -> None:
    watch, done = Watch(None), []

    def work() -> None:
        with watch.signals():
            signal.raise_signal(signal.SIGINT)
            done.append("behind the signal")

    with pytest.raises(KeyboardInterrupt):
        work()
    assert (done, watch.code) == (["behind the signal"], 0)


def test_the_second_signal_ends_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[int] = []
    monkeypatch.setattr(os, "_exit", ended.append)
    watch = Watch(None)
    with watch.signals():
        signal.raise_signal(signal.SIGINT)
        assert ended == []
        signal.raise_signal(signal.SIGTERM)
        assert ended == [143]
        watch.over()


def test_another_thread_hears_no_signals_and_works_all_the_same() -> None:
    before, heard = signal.getsignal(signal.SIGINT), []

    def work() -> None:
        with Watch(None).signals():
            heard.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert heard == [before]
