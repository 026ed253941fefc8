"""Outputs of a cell are capped, and a cell ends at its time or on a signal."""

import os
import signal
import sys
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest
from nbclient.exceptions import DeadKernelError
from nbformat.v4 import new_code_cell, new_notebook

from uavlab_lab.headless import kernel
from uavlab_lab.headless.kernel import Client, OwnKernelManager, Watchdog

PNG, PLOTLY, UPDATE = "image/png", "application/vnd.plotly.v1+json", "update_display_data"


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the limits to ten characters of text and thirty of a figure."""
    for name, value in {"TEXT": 10, "FIGURES": 30, "WEIGHT": 0, "CHUNK": 8}.items():
        monkeypatch.setattr(kernel, name, value)


def message(kind: str, **content: Any) -> dict[str, Any]:
    return {"msg_type": kind, "header": {"msg_type": kind}, "parent_header": {}, "metadata": {}, "content": content}


def printed(text: str, name: str = "stdout") -> dict[str, Any]:
    return message("stream", name=name, text=text)


def display(kind: str = "display_data", **data: Any) -> dict[str, Any]:
    known = {"plain": "text/plain", "html": "text/html", "png": PNG, "plotly": PLOTLY}
    data = {known[name]: value for name, value in data.items()}
    return message(kind, data=data, metadata={}, transient={"display_id": "one"})


def client_of(cell: Any) -> Client:
    client = Client(SimpleNamespace(nb=new_notebook(cells=[cell]), autosave_cell=lambda: None), Watchdog(None))
    client.clear_before_next_output = False  # as nbclient does where a cell begins
    return client


def process(*messages: dict[str, Any]) -> tuple[list[Any], str]:
    """Process messages with a client; return the outputs of the cell and the notice about the rest."""
    cell = new_code_cell(metadata={"execution": {}})
    client = client_of(cell)
    for one in messages:
        client.process_message(one, cell, 0)
    plain = [output.get("text", output.get("traceback", output.get("data"))) for output in cell.outputs]
    notices = [data for data in plain if isinstance(data, dict) and "left out" in data.get("text/plain", "")]
    assert len(notices) <= 1
    notice = notices[0]["text/plain"] if notices else ""
    return [data for data in plain if data not in notices], notice.partition(";")[0]


@pytest.mark.parametrize(
    ("messages", "outputs", "notice"),
    [
        ([printed("0123456789")], ["0123456789"], ""),
        ([printed("0123456789a")], ["0123456789"], "left out: 1 characters of stdout"),
        ([printed("0123456"), printed("789ab"), printed("cd")], ["0123456789"], "left out: 4 characters of stdout"),
        ([printed("0123456789"), printed("err", "stderr")], ["0123456789", "err"], ""),  # each has its own room
        ([display(plain="0123456789ab")], [{"text/plain": "0123456789"}], "left out: 2 characters of text/plain"),
        ([display(html="<b>01234</b>", plain="b")], [{"text/plain": "b"}], "left out: 12 characters of text/html"),
        ([display(html="<b>01234</b>")], [], "left out: 12 characters of text/html"),  # half of it would be broken
        ([display(plain="")], [{"text/plain": ""}], ""),
        ([display(plotly={"data": [1]}, plain="f")], [{PLOTLY: {"data": [1]}, "text/plain": "f"}], ""),
        ([display(plotly={"data": [10**20]})], [], "left out: 33 characters of application/vnd.plotly.v1+json"),
        ([display(png="x" * 20), display(png="y" * 20)], [{PNG: "x" * 20}], "left out: 20 characters of image/png"),
        (
            [display(png="x" * 20), *[display(UPDATE, png="y" * 20)] * 9],
            [{PNG: "y" * 20}],
            "",
        ),  # one takes another's place
        ([printed("0123456789"), message("clear_output", wait=False), printed("abc")], ["abc"], ""),
        ([printed("0123456789"), message("clear_output", wait=True), printed("abc")], ["abc"], ""),
        (
            [message("error", ename="E", evalue="0123", traceback=["4567", "89abc"])],
            [["4567", "89"]],
            "left out: 3 characters of error",
        ),
        ([printed("abc"), printed("def"), printed("ghijk"[:4])], ["abcdefghij"], ""),  # pieces are joined
        ([printed("abcdefgh"), printed("i")], ["abcdefgh", "i"], ""),  # up to a length
        ([printed("a"), printed("b", "stderr"), printed("c")], ["a", "b", "c"], ""),
    ],
)
def test_a_cell_keeps_so_much_and_says_what_it_left_out(
    messages: list[dict[str, Any]], outputs: list[Any], notice: str
) -> None:
    assert process(*messages) == (outputs, notice)


def test_the_notice_names_everything_once_and_the_limits() -> None:
    cell = new_code_cell(metadata={"execution": {}})
    client = client_of(cell)
    for one in [printed("x" * 1000), printed("y" * 500, "stderr"), printed("x" * 20)]:
        client.process_message(one, cell, 0)
    assert [output.output_type for output in cell.outputs] == ["stream", "display_data", "stream"]
    assert cell.outputs[1].data == {
        "text/plain": "left out: 1,010 characters of stdout, 490 characters of stderr; a cell keeps 10 of each kind of "
        "text and 30 of each kind of figure"
    }


def test_a_flood_of_tiny_outputs_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel, "WEIGHT", 4)
    outputs, notice = process(*[display(plain="1") for _ in range(50)])
    assert len(outputs) == 2  # of 1 + 4 characters each
    assert notice == "left out: 48 characters of text/plain"


def test_a_cell_is_given_up_before_it_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    client = client_of(new_code_cell())
    client.on_cell_execute(cell=None, cell_index=0)
    monkeypatch.setattr(client.watchdog, "expired", lambda: True)
    with pytest.raises(DeadKernelError, match="given up"):
        client.on_cell_execute(cell=None, cell_index=1)


def test_the_kernel_is_this_interpreter_with_settings_that_are_set_already(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.delenv("PLOTLY_RENDERER", raising=False)
    spec = OwnKernelManager().kernel_spec
    assert spec.argv[:3] == [sys.executable, "-m", "ipykernel_launcher"]
    assert spec.env["OMP_NUM_THREADS"] == "7"
    assert spec.env["PLOTLY_RENDERER"] == "plotly_mimetype"


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


@pytest.mark.parametrize(("timeout_s", "after", "code"), [(5, 5.0, 0), (5, 5.1, 124), (None, 1e9, 0)])
def test_a_cell_has_its_time(clock: list[float], timeout_s: int | None, after: float, code: int) -> None:
    watchdog = Watchdog(timeout_s)
    watchdog.start_cell()
    clock[0] += after
    assert watchdog.expired() is (code != 0)
    assert watchdog.code == code


def test_every_cell_has_its_own_time(clock: list[float]) -> None:
    watchdog = Watchdog(5)
    for _ in range(3):
        watchdog.start_cell()
        clock[0] += 4
        assert not watchdog.expired()
    clock[0] += 4
    assert watchdog.expired()
    watchdog.start_cell()  # the cell came to its end all the same
    assert not watchdog.expired()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_the_first_signal_only_leaves_word(number: int, code: int) -> None:
    watchdog, before = Watchdog(None), signal.getsignal(number)
    with watchdog.signals():
        signal.raise_signal(number)
        assert watchdog.expired()
    assert watchdog.code == code
    assert signal.getsignal(number) is before


def test_a_signal_that_nobody_asked_for_takes_effect_behind_the_block() -> None:
    watchdog, done = Watchdog(None), []

    def work() -> None:
        with watchdog.signals():
            signal.raise_signal(signal.SIGINT)
            done.append("behind the signal")

    with pytest.raises(KeyboardInterrupt):
        work()
    assert (done, watchdog.code) == (["behind the signal"], 0)


def test_the_second_signal_ends_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[int] = []
    monkeypatch.setattr(os, "_exit", ended.append)
    watchdog = Watchdog(None)
    with watchdog.signals():
        signal.raise_signal(signal.SIGINT)
        assert ended == []
        signal.raise_signal(signal.SIGTERM)
        assert ended == [143]
        watchdog.expired()


def test_another_thread_hears_no_signals_and_works_all_the_same() -> None:
    before, heard = signal.getsignal(signal.SIGINT), []

    def work() -> None:
        with Watchdog(None).signals():
            heard.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert heard == [before]
