"""The doctor names what is missing, says what to do, and measures rates by arithmetic that can be checked."""

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from uavlab.bench import doctor
from uavlab.bench.doctor import Row, examine
from uavlab.profiling import roofline


@pytest.fixture(autouse=True)
def small_matrices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roofline, "SIDE", {"cpu": 8})


def by_name(rows: list[Row]) -> dict[str, Row]:
    assert len({row.what for row in rows}) == len(rows)
    return {row.what: row for row in rows}


def test_every_row_says_what_to_do_exactly_when_something_is_missing(tmp_path: Path) -> None:
    rows = examine(tmp_path / "not" / "yet", "cpu")
    assert [row.what for row in rows if row.usable == bool(row.advice)] == []
    assert all(row.value for row in rows)
    assert str(tmp_path) in by_name(rows)["disk"].value  # the nearest folder that is there


def test_what_is_missing_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("BROWSER_PATH", raising=False)
    monkeypatch.setattr(doctor, "MAC_BROWSERS", ())
    monkeypatch.setattr(doctor, "version", lambda name: (_ for _ in ()).throw(doctor.PackageNotFoundError(name)))
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=1.5e9))
    monkeypatch.setattr(doctor.psutil, "virtual_memory", lambda: SimpleNamespace(available=3e9, total=8e9))
    rows = by_name(examine(tmp_path, "cpu"))
    missing = {"C++ compiler": "g++", "browser": "BROWSER_PATH", "JupyterLab": "make setup"}
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


@pytest.mark.parametrize(("half", "usable", "times"), [(50.0, False, "0.5"), (300.0, True, "3")])
def test_bfloat16_is_compared_with_float32_on_one_thread(
    monkeypatch: pytest.MonkeyPatch, half: float, usable: bool, times: str
) -> None:
    def rate(device: torch.device, precision: str) -> float:
        assert torch.get_num_threads() == 1
        return {"fp32": 100e9, "bf16": half * 1e9}[precision]

    monkeypatch.setattr(doctor, "matrix_rate", rate)
    single, bf16 = doctor._rates(torch.device("cpu"))
    assert single.value.startswith("100 GFLOP/s on ")
    assert bf16.value == f"{half:.0f} GFLOP/s, {times} times float32"
    assert bf16.usable is usable
