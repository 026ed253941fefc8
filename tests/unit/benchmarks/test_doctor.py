"""The doctor names what is missing and what to do about it, compares precisions, and lists toggles for this device."""

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from uavlab.runtime.toggles import TOGGLES
from uavlab_lab.measure import doctor
from uavlab_lab.measure.doctor import Row, examine, format_toggles, toggle_rows


@pytest.fixture(autouse=True)
def known_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "matrix_rate", lambda device, precision: 1e9)


def by_name(rows: list[Row]) -> dict[str, Row]:
    assert len({row.what for row in rows}) == len(rows)
    return {row.what: row for row in rows}


def test_every_row_says_what_to_do_exactly_when_something_is_missing(tmp_path: Path) -> None:
    rows = examine(tmp_path / "not" / "yet", "cpu")
    assert [row.what for row in rows if row.usable == bool(row.advice)] == []
    assert all(row.value for row in rows)
    assert str(tmp_path) in by_name(rows)["disk"].value  # the nearest folder that is there


def test_missing_programs_are_named_with_a_remedy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("BROWSER_PATH", raising=False)
    monkeypatch.setattr(doctor, "MAC_BROWSERS", ())
    monkeypatch.setattr(doctor, "version", lambda name: (_ for _ in ()).throw(doctor.PackageNotFoundError(name)))
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=1.5e9))
    monkeypatch.setattr(doctor.psutil, "virtual_memory", lambda: SimpleNamespace(available=3e9, total=8e9))
    rows = by_name(examine(tmp_path, "cpu"))
    missing = {"C++ compiler": "g++", "browser": "BROWSER_PATH", "JupyterLab": "uavlab[lab]"}
    for what, remedy in missing.items():
        assert (rows[what].value, rows[what].usable) == ("none", False)
        assert remedy in rows[what].advice
    assert rows["memory"] == Row(
        "memory", "3.0 GB free of 8.0 GB", False, "Below 4 GB, choose a smaller replay capacity."
    )
    assert not rows["disk"].usable


def test_chosen_programs_come_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for variable, name in (("CXX", "my-c++"), ("BROWSER_PATH", "my-browser")):
        (tmp_path / name).write_text("")
        (tmp_path / name).chmod(0o755)
        monkeypatch.setenv(variable, str(tmp_path / name))
    rows = by_name(examine(tmp_path, "cpu"))
    assert rows["C++ compiler"].value == str(tmp_path / "my-c++")
    assert rows["browser"].value == str(tmp_path / "my-browser")


@pytest.mark.parametrize(
    ("built", "visible", "why"),
    [
        (None, None, "This build of torch has no CUDA"),
        (None, "7", "This build of torch has no CUDA"),
        ("12.9", None, "built for CUDA 12.9 but finds no NVIDIA"),
        ("12.9", "-1", "CUDA_VISIBLE_DEVICES='-1' shows none to torch; unset it"),
    ],
)
def test_no_gpu_says_why(monkeypatch: pytest.MonkeyPatch, built: str | None, visible: str | None, why: str) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", built)
    [row] = doctor._gpus()
    assert not row.usable
    assert why in row.advice


def test_a_row_is_one_line() -> None:
    assert str(Row("GPU", "none", False, "Look.")) == "--  GPU                    none  (Look.)"
    assert str(Row("torch", "2.13")) == "ok  torch                  2.13"


def test_each_gpu_has_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda i: SimpleNamespace(name=f"card {i}", total_memory=80e9)
    )
    assert doctor._gpus() == [Row("GPU 0", "card 0, 80 GB"), Row("GPU 1", "card 1, 80 GB")]


@pytest.mark.parametrize(
    ("half", "usable", "times", "flags"),
    [
        (50e9, False, "0.5 times float32; instructions: none", ["avx2"]),
        (300e9, True, "3 times float32; instructions: avx512_bf16, amx_bf16", ["avx2", "avx512_bf16", "amx_bf16"]),
        (300e9, True, "3 times float32", []),  # the system lists no instructions
    ],
)
def test_bfloat16_is_compared_with_float32_on_one_thread(
    monkeypatch: pytest.MonkeyPatch, half: float, usable: bool, times: str, flags: list[str]
) -> None:
    threads, used = torch.get_num_threads(), []

    def rate(device: torch.device, precision: str) -> float:
        used.append(torch.get_num_threads())
        return {"fp32": 100e9, "bf16": half}[precision]

    monkeypatch.setattr(doctor, "matrix_rate", rate)
    monkeypatch.setattr(doctor, "cpu_flags", lambda: flags)
    single, bf16 = doctor._rates(torch.device("cpu"))
    assert single.value.startswith("100 GFLOP/s on ")
    assert bf16.value == f"{half / 1e9:.0f} GFLOP/s, {times}"
    assert bf16.usable is usable
    assert (used, torch.get_num_threads()) == ([1, 1], threads)


class TestToggles:
    def test_a_row_for_each_toggle(self) -> None:
        rows = {row["name"]: row for row in toggle_rows("cpu")}
        assert list(rows) == list(TOGGLES)
        assert rows["update"]["sets"]["plain"] == rows["update"]["default"] == "loop"
        assert rows["update"]["sets"]["eager"] == "batched"
        assert list(rows["graph"]["unusable"]) == ["update", "cycle"]
        assert rows["compile"]["unusable"] == {}
        assert list(rows["compile"]["notes"]) == ["reduce-overhead"]

    def test_the_text_names_values_reasons_and_sets(self) -> None:
        text = format_toggles("cpu")
        assert "loop, cached, merged, vmap, batched" in text
        assert "not here: tf32: tf32 needs a CUDA device" in text
        assert "reduce-overhead: the same program as compile=default" in text
        assert "  plain: every toggle at its first value\n  eager: update=batched optimizers=one" in text
