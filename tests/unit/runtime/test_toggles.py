"""The records name every toggle, the defaults are the plain reference, and what cannot be used falls back told."""

import re
from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.support.card_parts import facts, tables
from uavlab.core.errors import FallbackWarning, NoteWarning
from uavlab.runtime import toggles as records
from uavlab.runtime.runtime import Runtime
from uavlab.runtime.toggles import (
    TOGGLES,
    Toggles,
    as_dict,
    changes,
    notes_on,
    resolve,
    toggle_presets,
    with_toggles,
)

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


def test_every_toggle_has_its_record() -> None:
    assert list(as_dict(Toggles())) == list(TOGGLES) == [toggle.name for toggle in TOGGLES.values()]
    assert {toggle.equality for toggle in TOGGLES.values()} == {"exact", "rounding", "single", "precision", "algorithm"}
    assert all(toggle.claim and toggle.cost and toggle.seam for toggle in TOGGLES.values())
    by_name = {toggle.name: toggle for toggle in TOGGLES.values()}
    assert (by_name["adam"].values, by_name["threads"].values) == ("single, foreach, fused", "a number")


def test_what_is_changed_is_told() -> None:
    assert changes(Toggles()) == {}
    assert changes(with_toggles(Toggles(), {"update": "vmap", "threads": 2})) == {"update": "vmap", "threads": 2}


@pytest.mark.parametrize(
    ("asked", "here", "name", "reason"),
    [
        ({"precision": "tf32"}, CPU, "precision", "tf32 needs a CUDA device, this run is on cpu"),
        ({"graph": "update"}, CPU, "graph", "a CUDA graph needs a CUDA device, this run is on cpu"),
        ({"graph": "update", "update": "loop"}, CUDA, "graph", "update=loop cannot be captured; use update=batched"),
        ({"graph": "cycle", "placement": "host"}, CUDA, "graph", "use placement=device and prefetch=off"),
        ({"compile": "default", "update": "cached"}, CPU, "compile", "use update=batched"),
        ({"placement": "pinned"}, CPU, "placement", "this run is on cpu"),
        ({"memory_fraction": 0.5}, CPU, "memory_fraction", "needs a CUDA device"),
    ],
)
def test_what_cannot_be_used_falls_back_and_says_why(
    asked: dict[str, Any], here: torch.device, name: str, reason: str
) -> None:
    given = with_toggles(Toggles(update="batched"), asked)
    effective, reasons = resolve(given, here)
    assert list(reasons) == [name]
    assert reason in reasons[name]
    assert getattr(effective, name) == getattr(Toggles(), name)
    assert changes(effective) == {k: v for k, v in changes(given).items() if k != name}


def test_the_runtime_tells_once_and_records_it() -> None:
    with pytest.warns(FallbackWarning, match="graph=update fell back") as messages:
        rt = Runtime(requested=Toggles(update="batched", graph="update"))
    assert len(messages) == 1
    assert (rt.toggles.graph, list(rt.fell_back)) == ("off", ["graph"])
    rt.fall_back("graph", "again")  # known already: no second line
    assert rt.fell_back["graph"] != "again"


NOTES = [
    ({"precision": "bf16"}, CPU, ["avx2"], "this CPU has no instructions for it and emulates it"),
    ({"precision": "fp16"}, CPU, ["avx2", "avx512_bf16"], "this CPU has no instructions for it and emulates it"),
    ({"compile": "reduce-overhead"}, CPU, [], "the same program as compile=default"),
    ({"scaler": "aggressive"}, CPU, [], "it has no effect but where precision=fp16"),
]


@pytest.mark.parametrize(("values", "device", "flags", "text"), NOTES)
def test_a_value_that_does_not_do_what_it_says_is_noted_once(
    values: dict[str, str], device: torch.device, flags: list[str], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "cpu_flags", lambda: flags)
    ((name, value),) = values.items()
    with pytest.warns(NoteWarning, match=f"^{name}={value}: {text}") as messages:
        rt = replace(Runtime(requested=Toggles(update="batched", **values)), monitor=None)
    assert len(messages) == 1
    assert rt.notes[name].startswith(text)
    assert rt.fell_back == {}


@pytest.mark.parametrize(
    ("values", "device", "flags"),
    [
        ({"precision": "bf16"}, CPU, ["avx2", "amx_bf16"]),
        ({"precision": "bf16"}, CPU, []),  # of another kind of processor nothing is known
        ({"precision": "bf16"}, CUDA, ["avx2"]),
        ({"precision": "tf32"}, CUDA, ["avx2"]),
        ({"compile": "default"}, CPU, ["avx2"]),
        ({"precision": "fp16", "scaler": "aggressive"}, CUDA, []),
    ],
)
def test_others_have_no_note(
    values: dict[str, str], device: torch.device, flags: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "cpu_flags", lambda: flags)
    assert notes_on(Toggles(update="batched", **values), device) == {}


@pytest.mark.parametrize("device", [CPU, CUDA])
def test_named_sets_can_be_used_where_they_are_offered(device: torch.device) -> None:
    sets = toggle_presets(device)
    assert list(sets) == ["plain", "eager", "laptop", "gpu", "max"]
    assert sets["plain"] == {}
    for name in sets if device == CUDA else ("plain", "eager", "laptop", "max"):
        assert resolve(Toggles(**sets[name]), device)[1] == {}, name


@pytest.mark.parametrize(
    ("flags", "precision"),
    [(["amx_bf16"], "bf16"), (["avx2", "avx512_bf16"], "bf16"), (["avx512f", "bf16"], "fp32"), ([], "fp32")],
)
def test_the_laptop_has_bf16_where_the_processor_has_instructions_for_it(
    monkeypatch: pytest.MonkeyPatch, flags: list[str], precision: str
) -> None:
    """``bf16`` is that of ARM, for which there is no record."""
    monkeypatch.setattr(records, "cpu_flags", lambda: flags, raising=False)
    assert Toggles(**toggle_presets(CPU)["laptop"]).precision == precision


def test_the_card_has_every_toggle_and_marks_what_differs() -> None:
    page = Toggles(update="vmap", threads=2)._repr_html_()
    head, *rows = tables(page)[0]
    assert head == ["toggle", "value", "default", "equality", "claim"]
    assert [row[0] for row in rows] == list(TOGGLES)
    by_name = {row[0]: row[1:] for row in rows}
    assert by_name["update"] == ["vmap", "loop", TOGGLES["update"].equality, TOGGLES["update"].claim]
    assert by_name["threads"][:2] == ["2", "1"]
    assert re.findall(r"<b>(.*?)</b>", page)[1:] == ["update", "vmap", "threads", "2"]  # after the heading
    assert facts(page) == {"toggles": str(len(TOGGLES)), "unlike the plain reference": "2, in bold"}
