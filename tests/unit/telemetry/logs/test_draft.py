"""A draft of a mapping names fields by their names and units; what cannot be guessed is a comment."""

from pathlib import Path

import numpy as np
import pytest

from uavlab.core.errors import ConfigError
from uavlab.telemetry.logs.columns import read_column_map
from uavlab.telemetry.logs.draft import describe, draft_mapping
from uavlab.telemetry.logs.log import read_log


def draft(folder: Path, **columns: object) -> dict[str, tuple[str, str | None]]:
    """Return the field and the unit of each column in the draft for a table."""
    rows = max(np.size(values) for values in columns.values())
    table = {name: np.broadcast_to(values, rows) for name, values in columns.items()}
    text = [
        ",".join(f'"{name}"' for name in table),
        *(",".join(map(repr, map(float, row))) for row in zip(*table.values(), strict=True)),
    ]
    (folder / "a.csv").write_text("\n".join(text))
    (folder / "m.yaml").unlink(missing_ok=True)
    draft_mapping(folder / "a.csv", folder / "m.yaml")
    mapping = read_column_map(folder / "m.yaml")
    read_log(folder / "a.csv", mapping)
    return {name: (entries[0].field, entries[0].unit) for name, entries in mapping.columns.items()}


SECONDS = np.arange(3) / 2
THREE = ("x", "y", "z")


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ({"#timestamp [ns]": 1.5e18 + SECONDS * 1e9}, {"time": ("timestamp [ns]", "ns")}),
        ({"time(millisecond)": SECONDS * 1e3}, {"time": ("time(millisecond)", "ms")}),
        ({"t_us": SECONDS * 1e6}, {"time": ("t_us", "us")}),
        ({"timestamp": SECONDS * 1e6}, {"time": ("timestamp", "us")}),
        ({"timestamp": 1.5e18 + SECONDS * 1e9}, {"time": ("timestamp", "ns")}),
        ({"t": SECONDS}, {"time": ("t", "s")}),
    ],
)
def test_times(tmp_path: Path, columns: dict, expected: dict) -> None:
    assert draft(tmp_path, **columns, x=0)["time"] == expected["time"]


def test_units_that_would_fit_too_are_named(tmp_path: Path) -> None:
    """Neither a unit in the name nor time, whose steps decide, leaves a choice."""
    draft(tmp_path, **{"t": SECONDS, "gyro_x": (-29, 0, 29), "gyro_y [rad/s]": (-29, 0, 29)})
    lines = {line.strip().partition(":")[0]: line for line in (tmp_path / "m.yaml").read_text().splitlines()}
    assert "deg/s" in lines["p"].partition("; others would fit, too: ")[2]
    assert not any("would fit" in lines[name] for name in ("q", "time"))


@pytest.mark.parametrize(
    ("fields", "value", "columns", "unit"),
    [
        ([f"w_RS_S_{axis} [rad s^-1]" for axis in THREE], 0.1, ("p", "q", "r"), "rad/s"),
        ([f"a_RS_S_{axis} [m s^-2]" for axis in THREE], 6, ("ax", "ay", "az"), "m/s^2"),
        ([f"p_RS_R_{axis} [m]" for axis in THREE], 6, THREE, "m"),
        ([f"v_RS_R_{axis} [m s^-1]" for axis in THREE], 6, ("vx", "vy", "vz"), "m/s"),
        ([f"q_RS_{axis} []" for axis in "wxyz"], 0.5, ("qw", "qx", "qy", "qz"), "1"),
        ([f"{axis}Speed(mph)" for axis in THREE], 6, ("vx", "vy", "vz"), "mph"),
        ([f"gyro_{axis} (deg/s)" for axis in THREE], 90, ("p", "q", "r"), "deg/s"),
        ([f"{turn}Rate [dps]" for turn in ("roll", "pitch", "yaw")], 90, ("p", "q", "r"), "deg/s"),
        ([f"gyro[{n}]" for n in range(3)], 90, ("p", "q", "r"), "deg/s"),
        ([f"acc.{axis}" for axis in THREE], 0.577, ("ax", "ay", "az"), "g"),
        ([f"accelerometer_m_s2[{n}]" for n in range(3)], 6, ("ax", "ay", "az"), "m/s^2"),
        ([f"ang_vel_{axis}" for axis in THREE], 0.1, ("p", "q", "r"), "rad/s"),
        ([f"q{n}" for n in range(4)], 0.5, ("qw", "qx", "qy", "qz"), "1"),
        ([f"u{n}" for n in range(4)], 0.5, [f"motor_{n}" for n in range(1, 5)], "share"),
        ([f"motor_{n}_pwm" for n in range(1, 5)], 1500, [f"motor_{n}" for n in range(1, 5)], "us"),
        ([f"motor.m{n}" for n in range(1, 5)], 50, [f"motor_{n}" for n in range(1, 5)], "%"),
        ([f"stateEstimate.v{axis}" for axis in THREE], 6, ("vx", "vy", "vz"), "m/s"),
        ([f"position_setpoint_{axis}" for axis in THREE], 6, ("ref_x", "ref_y", "ref_z"), "m"),
        (["vel_north (ft/s)", "vel_east (ft/s)", "vel_down (ft/s)"], 6, ("vx", "vy", "vz"), "ft/s"),
        (["battery voltage [mV]"], 15_000, ("voltage",), "mV"),
        (["vbatLatest"], 1620, ("voltage",), "cV"),
        (["current(A)"], 5, ("current",), "A"),
    ],
)
def test_fields(tmp_path: Path, fields: list[str], value: float, columns: tuple[str, ...], unit: str) -> None:
    mapped = draft(tmp_path, t=SECONDS, **dict.fromkeys(fields, value))
    assert mapped == {"time": ("t", "s"), **{name: (field, unit) for name, field in zip(columns, fields, strict=True)}}


@pytest.mark.parametrize(
    ("field", "value", "comment"),
    [
        (
            "gyro_x (counts)",
            5,
            '  # p: {from: "gyro_x (counts)", unit: "rad/s"}  # 5 to 5, unit counts; known units: rad/s',
        ),
        ("motor_1", 38_000, '  # motor_1: {from: "motor_1", unit: "share"}  # 38000 to 38000, unit unknown; known'),
        (
            "vx (m/s)",
            900,
            '  # vx: {from: "vx (m/s)", unit: "m/s"}  # unit by its name, 900 to 900, outside -150 to 150',
        ),
        ("roll(degrees)", 5, '# Not used: "roll(degrees)"'),
        ("ang_acc_x", 5, '# Not used: "ang_acc_x"'),
        ("height_above_takeoff(feet)", 5, '# Not used: "height_above_takeoff(feet)"'),
        ("q1", 0.5, '# Not used: "q1"'),  # no attitude without its other parts
        ("mag_x", 0.5, '# Not used: "mag_x"'),
    ],
)
def test_what_cannot_be_guessed_is_a_comment(tmp_path: Path, field: str, value: float, comment: str) -> None:
    assert list(draft(tmp_path, t=SECONDS, z=1, **{field: value})) == ["time", "z"]
    text = (tmp_path / "m.yaml").read_text()
    assert any(line.startswith(comment) for line in text.splitlines())
    assert "# Not guessed: ref_x, " in text


def test_an_existing_file_is_left_alone(tmp_path: Path) -> None:
    draft(tmp_path, t=SECONDS, x=1)
    (tmp_path / "m.yaml").write_text("mine")
    with pytest.raises(ConfigError, match=r"m\.yaml: exists, and is not overwritten; name another file"):
        draft_mapping(tmp_path / "a.csv", tmp_path / "m.yaml")
    assert (tmp_path / "m.yaml").read_text() == "mine"


def test_the_draft_serves_a_foreign_table(tmp_path: Path) -> None:
    draft(tmp_path, t_ms=SECONDS * 1e3, gyroX=180, gyroY=0, gyroZ=0)
    (row, *_), (note, *_) = (describe(tmp_path / "a.csv", tmp_path / "m.yaml")[name] for name in ("columns", "missing"))
    assert (row["name"], row["max"], note) == ("p", pytest.approx(np.pi), "ref_x")
