"""The first signal stops a run, the second ends the process, and Ctrl-C waits for the end of a block."""

import os
import signal
import threading
from collections.abc import Iterator

import pytest

from uavlab.experiment.signals import ENDING, defer_interrupt, exit_immediately, graceful_stop


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """Check that every handler is back in its place."""
    before = [signal.getsignal(number) for number in ENDING]
    yield
    assert [signal.getsignal(number) for number in ENDING] == before


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
