"""Columns resampled to one grid: numbers by hand, and gaps that are refused."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from tests.support import ulog_writer
from uavlab.core.errors import FileError
from uavlab.telemetry.logs.log import Log, Signal, read_log, resample
from uavlab.telemetry.logs.raw import Group

NAN = float("nan")


def log(**columns: tuple[list[float], list[float]]) -> Log:
    """A log of columns with times of their own."""
    signals = {}
    for name, (time, values) in columns.items():
        group = Group(name, f"a.ulg {name}", {name: np.array(values)})
        signals[name] = Signal(np.array(time, dtype=float), np.array(values, dtype=float), name, group)
    return Log("a.ulg", signals)


def fly(given: Log, rate: float, columns: Sequence[str] = ()) -> dict[str, np.ndarray]:
    """Resample some columns, or all."""
    return resample(given, rate, columns or list(given.columns))


def test_between_rows_and_from_row_to_row() -> None:
    flight = fly(log(x=([0, 0.4, 0.8], [0, 10, 30]), motor_1=([0, 0.4, 0.8], [0.1, 0.2, 0.3])), 5)
    assert {name: values.dtype for name, values in flight.items()} == {"x": np.float32, "motor_1": np.float32}
    # half way from 0 to 10, and from 10 to 30
    assert flight["x"] == pytest.approx([0, 5, 10, 20, 30], abs=1e-5)
    assert flight["motor_1"] == pytest.approx([0.1, 0.1, 0.2, 0.2, 0.3])


def test_the_time_that_all_share() -> None:
    flight = fly(
        log(x=([0, 0.5, 1], [0, 5, 10]), vx=([0.2, 0.7, 1.2], [2, 7, 12]), motor_1=([-0.5, 0.25], [1, 0])), 100
    )
    assert flight["x"] == pytest.approx([2, 2.1, 2.2, 2.3, 2.4, 2.5], abs=1e-5)  # 0.20 to 0.25 s
    assert flight["vx"] == pytest.approx([2, 2.1, 2.2, 2.3, 2.4, 2.5], abs=1e-5)
    assert flight["motor_1"].tolist() == [1, 1, 1, 1, 1, 0]


def test_a_held_value_begins_with_its_row_whatever_rounding_does() -> None:
    time = [n / 10 for n in range(11)]  # 0.3 is less than 3 / 10 of a grid from 0.1
    flight = fly(log(motor_1=(time, [n / 10 for n in range(11)])), 10)
    assert flight["motor_1"].tolist() == [np.float32(n / 10) for n in range(11)]
    late = fly(log(motor_1=([t + 0.1 for t in time], [n / 10 for n in range(11)])), 10)
    assert late["motor_1"].tolist() == flight["motor_1"].tolist()


HALF = np.sqrt(0.5)  # cosine and sine of 45 degrees: a turn by 90
QUARTER = np.cos(np.pi / 8), np.sin(np.pi / 8)  # a turn by 45


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("begin", [1, -1])
def test_attitudes_go_the_shorter_way(begin: int, sign: int) -> None:
    """From level to a turn by 90 degrees about z; both quaternions of a rotation are the same one."""
    time = [0, 0.5]
    turn = {"qw": [1, HALF], "qx": [0, 0], "qy": [0, 0], "qz": [0, HALF]}
    signed = {name: (time, [begin * values[0], sign * values[1]]) for name, values in turn.items()}
    flight = fly(log(**signed), 4)
    expected = [[1, 0, 0, 0], [QUARTER[0], 0, 0, QUARTER[1]], [HALF, 0, 0, HALF]]
    np.testing.assert_allclose(np.stack(list(flight.values()), 1), expected, atol=1e-6)


def test_attitudes_have_length_one() -> None:
    turns = np.linspace(0, 40, 81)
    flips = np.where(np.arange(81) % 3 == 0, -1, 1)
    parts = {"qw": np.cos(turns), "qx": 0.6 * np.sin(turns), "qy": 0.8 * np.sin(turns), "qz": 0 * turns}
    time = np.arange(81) / 20
    flight = fly(log(**{name: (list(time), list(part * flips)) for name, part in parts.items()}), 97)
    attitude = np.stack(list(flight.values()), 1)
    assert np.linalg.norm(attitude, axis=1) == pytest.approx(np.ones(len(attitude)), abs=1e-6)
    steps = (attitude[1:] * attitude[:-1]).sum(1)
    assert (steps > 0.9).all()  # no jump to the other quaternion
    angle = np.unwrap(np.arctan2(attitude[:, 2] / 0.8, attitude[:, 0]))
    assert angle == pytest.approx(np.interp(np.arange(len(angle)) / 97, time, turns), abs=0.02)


def test_part_of_an_attitude_is_left_as_it_is() -> None:
    flight = fly(log(qw=([0, 1], [1, 0]), qx=([0, 1], [0, 1]), qy=([0, 1], [0, 0]), qz=([0, 1], [0, 0])), 2, ["qw"])
    assert flight["qw"].tolist() == [1, 0.5, 0]


def test_rows_without_a_value_are_skipped() -> None:
    time = [0, 0.25, 0.5, 0.75, 1]
    flight = fly(log(x=(time, [NAN, 1, NAN, 3, 4]), motor_1=(time, [0.1, 0.2, NAN, 0.4, NAN]), y=(time, [0] * 5)), 4)
    assert flight["x"].tolist() == [1, 2, 3]  # x begins at 0.25 s, and motor_1 ends at 0.75
    assert flight["motor_1"].tolist() == [np.float32(0.2), np.float32(0.2), np.float32(0.4)]


def test_a_row_without_part_of_an_attitude_is_skipped() -> None:
    time = [0, 0.25, 0.5]
    level = {name: (time, [0.0, 0.0, 0.0]) for name in ("qx", "qz")}
    flight = fly(log(qw=(time, [1, NAN, 1]), qy=(time, [0, 0.7, 0]), **level), 4)
    assert flight["qw"].tolist() == [1, 1, 1]
    assert flight["qy"].tolist() == [0, 0, 0]  # the 0.7 has no partner


def test_columns_are_selected_and_ordered() -> None:
    both = log(x=([0, 0.5], [1, 1]), y=([0, 0.5], [2, 2]))
    flight = fly(both, 2, ("y", "x"))
    assert [(name, values.tolist()) for name, values in flight.items()] == [("y", [2, 2]), ("x", [1, 1])]


GAPPED = log(x=([0, 0.5, 2, 2.5], [0, 1, 2, 3]), y=([0, 0.5, 1, 1.5, 2, 2.5], [0, 1, NAN, NAN, 4, 5]))


def test_gaps_that_are_allowed_or_outside() -> None:
    assert fly(log(x=([0, 1, 2], [0, 1, 2])), 1)["x"].tolist() == [0, 1, 2]  # a second is no gap
    for begin in (0, 2):
        inside = log(x=([0, 0.5, 2, 2.5], [0, 1, 2, 3]), motor_1=([begin, begin + 0.5], [0, 1]))
        assert len(fly(inside, 2)["x"]) == 2


NOWHERE = {name: ([0, 0.5], [1, NAN] if name == "qw" else [NAN, 0]) for name in ("qw", "qx", "qy", "qz")}
ADVICE = "expected gaps of at most 1 s; cut the log there."
REFUSED: list[tuple[Log, list[str], str]] = [
    (
        GAPPED,
        [],
        f"a.ulg x row 1 column 'x' (x): nothing from 0.500 to 2.000 s after the start (a.ulg x row 2); {ADVICE}",
    ),
    (
        GAPPED,
        ["y"],
        "a.ulg y row 1 column 'y' (y): 2 rows without a value from 0.500 to 2.000 s after the start (a.ulg y row 4); "
        + ADVICE,
    ),
    (
        log(x=([0, 0.5, 2, 2.5], [0, 1, 2, 3]), y=([0.5, 0.6], [0, 1])),
        [],
        f"a.ulg x row 1 column 'x' (x): nothing from 0.500 to 2.000 s after the start (a.ulg x row 2); {ADVICE}",
    ),
    (
        log(x=([0, 1], [0, 1]), y=([1, 2], [0, 1])),
        [],
        "a.ulg: columns share no time: 'y' begins at 1.000 s, 'x' ends at 1.000 s after the start; leave one of them "
        "out.",
    ),
    (GAPPED, ["x", "z"], "a.ulg: no column 'z'; expected x, z; found x, y."),
    (log(**NOWHERE), [], "a.ulg: no row has all of qw, qx, qy, qz."),
]


@pytest.mark.parametrize(("given", "columns", "message"), REFUSED, ids=range(len(REFUSED)))
def test_what_cannot_be_resampled_is_refused(given: Log, columns: list[str], message: str) -> None:
    with pytest.raises(FileError) as refusal:
        fly(given, 2, columns)
    assert str(refusal.value) == message


def test_a_missing_column_tells_why(tmp_path: Path) -> None:
    (tmp_path / "a.ulg").write_bytes(ulog_writer.new())
    with pytest.raises(
        FileError, match=r"no column 'current' \(current: no value in battery_status\.current_a\); expe"
    ):
        resample(read_log(tmp_path / "a.ulg"), 100, ["x", "current"])


def test_a_log_becomes_a_flight(tmp_path: Path) -> None:
    (tmp_path / "a.ulg").write_bytes(ulog_writer.new())
    flight = fly(read_log(tmp_path / "a.ulg"), 100)
    assert np.stack(list(flight.values())).shape == (27, 101)
    assert np.isfinite(np.stack(list(flight.values()))).all()
    assert flight["x"] == pytest.approx(np.arange(101) / 100, abs=1e-6)
