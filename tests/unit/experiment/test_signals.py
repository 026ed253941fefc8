"""The first signal stops a run, the second ends the process; Ctrl-C waits for the end of a block; a limit ends one."""

import os
import signal
import threading
import time
from collections.abc import Iterator

import pytest

from uavlab.experiment import signals
from uavlab.experiment.signals import ENDING, TimeLimit, defer_interrupt, exit_immediately, graceful_stop, time_limit


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """Check that every handler is back in its place."""
    before = [signal.getsignal(number) for number in (*ENDING, signal.SIGALRM)]
    yield
    assert [signal.getsignal(number) for number in (*ENDING, signal.SIGALRM)] == before
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_the_first_stops_and_the_second_ends() -> None:
    stops: list[int] = []
    with graceful_stop(lambda: stops.append(1)) as received:
        os.kill(os.getpid(), signal.SIGTERM)
        assert (received, stops) == ([signal.SIGTERM], [1])
        with pytest.raises(SystemExit) as end:
            interrupt()
        assert (end.value.code, stops) == (130, [1])


def test_the_second_may_end_the_process_in_another_way() -> None:
    ends: list[int] = []
    with graceful_stop(lambda: None, ends.append):
        interrupt()
        assert ends == []
        interrupt()
        assert ends == [130]


def test_a_block_is_done_before_it_is_interrupted() -> None:
    done = []

    def block() -> None:
        with defer_interrupt():
            interrupt()
            interrupt()
            done.append(1)

    with pytest.raises(KeyboardInterrupt):
        block()
    assert done == [1]


def test_without_it_the_block_would_be_cut() -> None:
    done = []

    def block() -> None:
        interrupt()
        done.append(1)

    with pytest.raises(KeyboardInterrupt):
        block()
    assert done == []


def test_an_error_in_the_block_is_told_rather_than_the_interrupt() -> None:
    def block() -> None:
        with defer_interrupt():
            interrupt()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        block()


def test_a_handler_that_somebody_set_goes_first() -> None:
    stops: list[int] = []
    with graceful_stop(lambda: stops.append(1)), defer_interrupt():
        interrupt()
        assert stops == [1]


def test_other_threads_are_left_alone() -> None:
    ended = []

    def block() -> None:
        with defer_interrupt():
            ended.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=block)
    thread.start()
    thread.join()
    assert ended == [signal.default_int_handler]


def test_at_once_gives_handlers_back() -> None:
    with exit_immediately():
        assert signal.getsignal(signal.SIGINT) is not signal.default_int_handler


def wait(steps: int = 5000) -> str:
    for _ in range(steps):
        time.sleep(0.001)
    return "done"


class TestTimeLimit:
    @pytest.mark.parametrize("seconds", [0.02, 0.0, -1.0])
    def test_it_ends_a_block(self, seconds: float) -> None:
        with pytest.raises(TimeLimit), time_limit(seconds):
            wait()

    @pytest.mark.parametrize("seconds", [60.0, float("inf")])
    def test_a_short_block_is_done(self, seconds: float) -> None:
        with time_limit(seconds):
            assert wait(2) == "done"

    def test_an_error_of_the_block_passes(self) -> None:
        with pytest.raises(KeyError), time_limit(60.0):
            raise KeyError

    def test_handlers_of_errors_let_it_pass(self) -> None:
        def block() -> None:
            try:
                wait()
            except Exception:
                pytest.fail("caught as an error")

        with pytest.raises(TimeLimit), time_limit(0.02):
            block()

    def test_it_comes_again_where_it_was_suppressed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        suppressed = []

        def block() -> None:
            try:
                wait()
            except BaseException as error:
                suppressed.append(type(error))
            wait()

        monkeypatch.setattr(signals, "AGAIN_S", 0.02)
        with pytest.raises(TimeLimit), time_limit(0.02):
            block()
        assert suppressed == [TimeLimit]

    def test_other_threads_have_none(self) -> None:
        results: list[str] = []

        def block() -> None:
            with time_limit(0.0):
                results.append(wait(2))

        thread = threading.Thread(target=block)
        thread.start()
        thread.join()
        assert results == ["done"]
