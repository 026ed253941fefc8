import sys
from types import SimpleNamespace
from typing import Any

import pytest
from nbclient.exceptions import DeadKernelError
from nbformat.v4 import new_code_cell, new_notebook

from uavlab.lab.headless import kernel
from uavlab.lab.headless.kernel import Client, ThisPython
from uavlab.lab.headless.watchdog import Watch

PNG, PLOTLY, UPDATE = "image/png", "application/vnd.plotly.v1+json", "update_display_data"


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the limits ten characters of text and thirty of a figure."""
    for name, value in {"TEXT": 10, "FIGURES": 30, "WEIGHT": 0, "CHUNK": 8}.items():
        monkeypatch.setattr(kernel, name, value)


def message(kind: str, **content: Any) -> dict[str, Any]:
    return {"msg_type": kind, "header": {"msg_type": kind}, "parent_header": {}, "metadata": {}, "content": content}


def printed(text: str, name: str = "stdout") -> dict[str, Any]:
    return message("stream", name=name, text=text)


def shown(kind: str = "display_data", **data: Any) -> dict[str, Any]:
    known = {"plain": "text/plain", "html": "text/html", "png": PNG, "plotly": PLOTLY}
    data = {known[name]: value for name, value in data.items()}
    return message(kind, data=data, metadata={}, transient={"display_id": "one"})


def client_of(cell: Any) -> Client:
    client = Client(SimpleNamespace(nb=new_notebook(cells=[cell]), autosave_cell=lambda: None), Watch(None))
    client.clear_before_next_output = False  # as nbclient does where a cell begins
    return client


def kept(*messages: dict[str, Any]) -> tuple[list[Any], str]:
    """Let a client process messages; give what the cell keeps and the notice about the rest."""
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
        ([shown(plain="0123456789ab")], [{"text/plain": "0123456789"}], "left out: 2 characters of text/plain"),
        ([shown(html="<b>01234</b>", plain="b")], [{"text/plain": "b"}], "left out: 12 characters of text/html"),
        ([shown(html="<b>01234</b>")], [], "left out: 12 characters of text/html"),  # half of it would be broken
        ([shown(plain="")], [{"text/plain": ""}], ""),
        ([shown(plotly={"data": [1]}, plain="f")], [{PLOTLY: {"data": [1]}, "text/plain": "f"}], ""),
        ([shown(plotly={"data": [10**20]})], [], "left out: 33 characters of application/vnd.plotly.v1+json"),
        ([shown(png="x" * 20), shown(png="y" * 20)], [{PNG: "x" * 20}], "left out: 20 characters of image/png"),
        ([shown(png="x" * 20), *[shown(UPDATE, png="y" * 20)] * 9], [{PNG: "y" * 20}], ""),  # one takes another's place
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
    assert kept(*messages) == (outputs, notice)


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
    outputs, notice = kept(*[shown(plain="1") for _ in range(50)])
    assert len(outputs) == 2  # of 1 + 4 characters each
    assert notice == "left out: 48 characters of text/plain"


def test_a_cell_is_given_up_before_it_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    client = client_of(new_code_cell())
    client.on_cell_execute(cell=None, cell_index=0)
    monkeypatch.setattr(client.watch, "over", lambda: True)
    with pytest.raises(DeadKernelError, match="given up"):
        client.on_cell_execute(cell=None, cell_index=1)


def test_the_kernel_is_this_interpreter_with_settings_that_are_set_already(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.delenv("PLOTLY_RENDERER", raising=False)
    spec = ThisPython().kernel_spec
    assert spec.argv[:3] == [sys.executable, "-m", "ipykernel_launcher"]
    assert spec.env["OMP_NUM_THREADS"] == "7"
    assert spec.env["PLOTLY_RENDERER"] == "plotly_mimetype"
