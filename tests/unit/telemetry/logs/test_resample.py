"""Columns resampled to one grid: numbers by hand, and gaps that are refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support import ulog_writer
from uavlab.core.errors import ConfigError, FileError
from uavlab.telemetry.logs import resample as module
from uavlab.telemetry.logs.column_map import ColumnMap, Entry
from uavlab.telemetry.logs.log import Log, Signal, read_log
from uavlab.telemetry.logs.raw import Group
from uavlab.telemetry.logs.resample import Flight, resample

NAN = float("nan")


def log(**columns: tuple[list[float], list[float]]) -> Log:
    """A log of columns with times of their own."""
    signals = {}
    for name, (time, values) in columns.items():
        group = Group(name, f"a.ulg {name}", {name: np.array(values)})
        signals[name] = Signal(np.array(time, dtype=float), np.array(values, dtype=float), name, group)
    return Log("a.ulg", "ulog", 0.0, signals)


def test_between_rows_and_from_row_to_row() -> None:
    flight = resample(
        log(x=([0, 0.4, 0.8], [0, 10, 30]), motor_1=([0, 0.4, 0.8], [0.1, 0.2, 0.3])),
        rate=5,
    )
    assert flight.columns == ("x", "motor_1")
    assert flight.values.dtype == np.float32
    # half way from 0 to 10, and from 10 to 30
    assert flight.column("x") == pytest.approx([0, 5, 10, 20, 30], abs=1e-5)
    assert flight.column("motor_1") == pytest.approx([0.1, 0.1, 0.2, 0.2, 0.3])
    assert flight.time == pytest.approx([0, 0.2, 0.4, 0.6, 0.8])
    assert (flight.source, flight.rate, flight.start, flight.filled) == ("a.ulg", 5, 0, {})


def test_the_time_that_all_share() -> None:
    flight = resample(
        log(x=([0, 0.5, 1], [0, 5, 10]), vx=([0.2, 0.7, 1.2], [2, 7, 12]), motor_1=([-1, 0.25], [1, 0])),
        rate=100,
        gap=2,
    )
    assert flight.start == 0.2
    assert len(flight.values) == 6  # 0.20 to 0.25
    assert flight.values[:, 0] == pytest.approx([2, 2.1, 2.2, 2.3, 2.4, 2.5], abs=1e-5)
    assert flight.values[:, 1] == pytest.approx([2, 2.1, 2.2, 2.3, 2.4, 2.5], abs=1e-5)
    assert flight.column("motor_1").tolist() == [1, 1, 1, 1, 1, 0]


def test_a_held_value_begins_with_its_row_whatever_rounding_does() -> None:
    time = [n / 10 for n in range(11)]  # 0.3 is less than 3 / 10 of a grid from 0.1
    flight = resample(log(motor_1=(time, [n / 10 for n in range(11)])), rate=10)
    assert flight.column("motor_1").tolist() == [np.float32(n / 10) for n in range(11)]
    late = resample(log(motor_1=([t + 0.1 for t in time], [n / 10 for n in range(11)])), rate=10)
    assert late.column("motor_1").tolist() == flight.column("motor_1").tolist()


HALF = np.sqrt(0.5)  # cosine and sine of 45 degrees: a turn by 90
QUARTER = np.cos(np.pi / 8), np.sin(np.pi / 8)  # a turn by 45


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("begin", [1, -1])
def test_attitudes_go_the_shorter_way(begin: int, sign: int) -> None:
    """From level to a turn by 90 degrees about z; both quaternions of a rotation are the same one."""
    time = [0, 0.5]
    turn = {"qw": [1, HALF], "qx": [0, 0], "qy": [0, 0], "qz": [0, HALF]}
    signed = {name: (time, [begin * values[0], sign * values[1]]) for name, values in turn.items()}
    flight = resample(log(**signed), rate=4)
    expected = [[1, 0, 0, 0], [QUARTER[0], 0, 0, QUARTER[1]], [HALF, 0, 0, HALF]]
    np.testing.assert_allclose(flight.values, expected, atol=1e-6)


def test_attitudes_have_length_one() -> None:
    turns = np.linspace(0, 40, 81)
    flips = np.where(np.arange(81) % 3 == 0, -1, 1)
    parts = {"qw": np.cos(turns), "qx": 0.6 * np.sin(turns), "qy": 0.8 * np.sin(turns), "qz": 0 * turns}
    time = np.arange(81) / 20
    flight = resample(log(**{name: (list(time), list(part * flips)) for name, part in parts.items()}), rate=97)
    assert np.linalg.norm(flight.values, axis=1) == pytest.approx(np.ones(len(flight.values)), abs=1e-6)
    steps = (flight.values[1:] * flight.values[:-1]).sum(1)
    assert (steps > 0.9).all()  # no jump to the other quaternion
    angle = np.unwrap(np.arctan2(flight.values[:, 2] / 0.8, flight.values[:, 0]))
    assert angle == pytest.approx(np.interp(flight.time, time, turns), abs=0.02)


def test_part_of_an_attitude_is_left_as_it_is() -> None:
    flight = resample(
        log(qw=([0, 1], [1, 0]), qx=([0, 1], [0, 1]), qy=([0, 1], [0, 0]), qz=([0, 1], [0, 0])), 2, ["qw"]
    )
    assert flight.column("qw").tolist() == [1, 0.5, 0]


def test_rows_without_a_value_are_skipped_and_counted() -> None:
    time = [0, 0.25, 0.5, 0.75, 1]
    flight = resample(
        log(x=(time, [NAN, 1, NAN, 3, 4]), motor_1=(time, [0.1, 0.2, NAN, 0.4, NAN]), y=(time, [0] * 5)), rate=4
    )
    assert flight.start == 0.25  # x begins there, and motor_1 ends at 0.75
    assert flight.column("x").tolist() == [1, 2, 3]
    assert flight.column("motor_1").tolist() == [np.float32(0.2), np.float32(0.2), np.float32(0.4)]
    assert flight.filled == {"x": 1, "motor_1": 1}


def test_a_row_without_part_of_an_attitude_is_skipped() -> None:
    time = [0, 0.25, 0.5]
    level = {name: (time, [0.0, 0.0, 0.0]) for name in ("qx", "qz")}
    flight = resample(log(qw=(time, [1, NAN, 1]), qy=(time, [0, 0.7, 0]), **level), rate=4)
    assert flight.values[:, 0].tolist() == [1, 1, 1]
    assert flight.column("qy").tolist() == [0, 0, 0]  # the 0.7 has no partner
    assert flight.filled == dict.fromkeys(("qw", "qx", "qy", "qz"), 1)


def test_columns_are_selected_and_ordered() -> None:
    both = log(x=([0, 0.5], [1, 1]), y=([0, 0.5], [2, 2]))
    flight = resample(both, 2, ("y", "x"))
    assert flight.columns == ("y", "x")
    assert flight.values.tolist() == [[2, 1], [2, 1]]


def test_the_rate_of_a_mapping(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("time,x\n7,1\n7.5,2\n")
    mapping = ColumnMap("m", {"x": (Entry("x"),)}, rate=8)
    assert len(resample(read_log(tmp_path / "a.csv", mapping)).values) == 5
    assert len(resample(read_log(tmp_path / "a.csv", mapping), 2).values) == 2


def test_a_span_is_cut_out() -> None:
    whole = log(x=([0, 1, 2, 3], [0, 1, 2, 3]))
    flight = resample(whole, 4, span=(0.5, 1.25))
    assert flight.time.tolist() == [0.5, 0.75, 1, 1.25]
    assert flight.column("x").tolist() == [0.5, 0.75, 1, 1.25]
    assert resample(whole, 4, span=(-9, 99)).values.tolist() == resample(whole, 4).values.tolist()


GAPPED = log(x=([0, 0.5, 2, 2.5], [0, 1, 2, 3]), y=([0, 0.5, 1, 1.5, 2, 2.5], [0, 1, NAN, NAN, 4, 5]))


def test_gaps_that_are_allowed_or_outside() -> None:
    assert resample(GAPPED, 2, gap=1.5).filled == {"y": 2}
    assert len(resample(GAPPED, 2, span=(0, 0.5)).values) == 2
    assert len(resample(GAPPED, 2, span=(2, 2.5)).values) == 2
    assert resample(log(x=([0, 1, 2], [0, 1, 2])), 1).column("x").tolist() == [0, 1, 2]  # a second is no gap


ADVICE = "expected gaps of at most 1 s: choose a span without it, or a longer gap."
REFUSED: list[tuple[Log, dict[str, Any], type[Exception], str]] = [
    (
        GAPPED,
        {},
        FileError,
        f"a.ulg x row 1 column 'x' (x): nothing from 0.500 to 2.000 s after the start (a.ulg x row 2); {ADVICE}",
    ),
    (
        GAPPED,
        {"columns": ["y"]},
        FileError,
        "a.ulg y row 1 column 'y' (y): 2 rows without a value from 0.500 to 2.000 s after the start (a.ulg y row 4); "
        + ADVICE,
    ),
    (
        GAPPED,
        {"span": (0.5, 0.6)},
        FileError,
        f"a.ulg x row 1 column 'x' (x): nothing from 0.500 to 2.000 s after the start (a.ulg x row 2); {ADVICE}",
    ),
    (
        log(x=([0, 1], [0, 1]), y=([1, 2], [0, 1])),
        {},
        FileError,
        "a.ulg: columns share no time: 'y' begins at 1.000 s, 'x' ends at 1.000 s after the start; leave one of them "
        "out.",
    ),
    (GAPPED, {"columns": ["x", "z"]}, FileError, "a.ulg: no column 'z'; expected x, z; found x, y."),
    (GAPPED, {"columns": []}, FileError, "a.ulg: no column at all; expected none; found x, y."),
    (GAPPED, {"columns": ["motor1"]}, ConfigError, "a.ulg: unknown column 'motor1' (did you mean 'motor_1'?)."),
    (GAPPED, {"columns": ["time"]}, ConfigError, "a.ulg: unknown column 'time'."),
    (
        GAPPED,
        {"rate": None},
        ConfigError,
        "a.ulg: no rate to resample at; give one, or `rate: 100` in the mapping.",
    ),
    (
        GAPPED,
        {"rate": 0},
        ConfigError,
        "a.ulg: rate: expected a number of Hz above 0 and up to 2000, got 0.",
    ),
    (GAPPED, {"gap": 0}, ConfigError, "a.ulg: gap: expected seconds above 0, got 0."),
    (GAPPED, {"gap": NAN}, ConfigError, "a.ulg: gap: expected seconds above 0, got nan."),
    *(
        (
            GAPPED,
            {"span": span},
            ConfigError,
            f"a.ulg: span: expected two times between 0.000 and 2.500 s after the start, got {span}.",
        )
        for span in ((2, 1), (2.5, 9), (-1, 0), (NAN, 1))
    ),
    (
        log(**{name: ([0, 0.5], [1, NAN] if name == "qw" else [NAN, 0]) for name in ("qw", "qx", "qy", "qz")}),
        {},
        FileError,
        "a.ulg: no row has all of qw, qx, qy, qz.",
    ),
]


@pytest.mark.parametrize(("given", "options", "error", "message"), REFUSED, ids=range(len(REFUSED)))
def test_what_cannot_be_resampled_is_refused(
    given: Log, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error) as refusal:
        resample(given, **{"rate": 2, **options})
    assert str(refusal.value) == message


def test_a_missing_column_tells_why(tmp_path: Path) -> None:
    (tmp_path / "a.ulg").write_bytes(ulog_writer.new())
    with pytest.raises(
        FileError, match=r"no column 'current' \(current: no value in battery_status\.current_a\); expe"
    ):
        resample(read_log(tmp_path / "a.ulg"), 100, ["x", "current"])


def test_too_many_rows_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_VALUES", 10)
    assert resample(log(x=([0, 0.9], [0, 1])), 10).values.shape == (10, 1)
    with pytest.raises(ConfigError, match=r"^a\.ulg: 11 rows of 1 columns; resample at a lower rate or in parts\.$"):
        resample(log(x=([0, 1], [0, 1])), 10)


def test_a_log_becomes_a_flight(tmp_path: Path) -> None:
    (tmp_path / "a.ulg").write_bytes(ulog_writer.new())
    flight = resample(read_log(tmp_path / "a.ulg"), 100)
    assert isinstance(flight, Flight)
    assert flight.values.shape == (101, 27)
    assert np.isfinite(flight.values).all()
    assert flight.column("x") == pytest.approx(np.arange(101) / 100, abs=1e-6)
