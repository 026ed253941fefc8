"""Commands that simulate flights and describe logs, for people and for programs."""

from pathlib import Path

import pytest

from tests.support import ulog_writer
from tests.support.cli_runner import uavlab
from uavlab.telemetry.logs.draft import describe


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Work in a folder of the test's own."""
    monkeypatch.chdir(tmp_path)


def test_a_log_is_described() -> None:
    Path("a.ulg").write_bytes(ulog_writer.new())
    ended = uavlab("flights", "describe", "a.ulg", "--json")
    assert (ended.code, ended.err) == (0, "")
    assert ended.json == describe(Path("a.ulg"))
    lines = ended.out.splitlines()
    assert lines[0] == "a.ulg: ulog, 1.0 s"
    assert "motor_3 actuator_motors.control[2] share 11 10.0 0.74 0.75 0.0%" in [" ".join(x.split()) for x in lines]
    assert "dropouts: count 0, total_ms 0, longest_ms 0" in lines
    assert "other topics, Hz: actuator_outputs 10" in lines
    assert "missing: current" in lines
    assert "note: current: no value in battery_status.current_a" in lines


def test_a_table_is_described_by_a_mapping() -> None:
    Path("a.csv").write_text("t,gyro,mode\n0,,a\n10,90,b\n20,180,c\n")
    Path("m.yaml").write_text("columns:\n  time: {from: t, unit: ms}\n  p: {from: gyro, unit: deg/s}\n")
    ended = uavlab("flights", "describe", "a.csv", "--mapping", "m.yaml")
    assert ended.code == 0
    assert ended.out.splitlines()[0] == "a.csv: csv, 0.0 s"
    lines = [" ".join(line.split()) for line in ended.out.splitlines()]
    assert "p gyro rad/s 3 100.0 1.5708 3.1416 33.3%" in lines
    assert "- t ? 3 0 20 0.0%" in lines
    assert "no numbers: mode" in lines


def test_a_table_that_nobody_knows_is_described() -> None:
    Path("a.csv").write_text("t,gyro\x1b[2J\n0,\n10,\n")
    ended = uavlab("flights", "describe", "a.csv")
    assert ended.code == 0
    assert ended.out.splitlines()[0] == "a.csv: csv, unknown"
    assert r"gyro\x1b[2J" in ended.out
    assert "\x1b" not in ended.out
    note = ended.out.splitlines()[-1]
    assert note.startswith(
        "note: no column of a flight found: write a mapping: uavlab flights describe a.csv --write-m"
    )
    *command, _, page = note.partition("uavlab ")[2].replace(",", "").split()
    drafted = uavlab(*command)
    assert drafted.out.splitlines()[0] == "a.yaml: 1 columns guessed; correct it, then use it by --mapping"
    assert (Path(__file__).parents[3] / page).is_file()


def test_a_mapping_is_drafted_and_used() -> None:
    Path("a.csv").write_text('"t [ms]","gyro_x [deg/s]"\n0,0\n10,90\n20,180\n')
    ended = uavlab("flights", "describe", "a.csv", "--write-mapping", "m.yaml")
    assert (ended.code, ended.err) == (0, "")
    assert "p gyro_x [deg/s] rad/s 3 100.0 0 3.1416 0.0%" in [" ".join(line.split()) for line in ended.out.splitlines()]
    again = uavlab("flights", "describe", "a.csv", "--write-mapping", "m.yaml")
    message = "ConfigError: m.yaml: exists, and is not overwritten; name another file, or remove it.\n"
    assert (again.code, again.err) == (2, message)
    both = uavlab("flights", "describe", "a.csv", "--write-mapping", "n.yaml", "--mapping", "m.yaml")
    assert (both.code, Path("n.yaml").exists()) == (2, False)


def test_a_bad_log_is_refused_in_one_line() -> None:
    Path("a.csv").write_text('time,x\n0,1\n1,"1,5"\n')
    ended = uavlab("flights", "describe", "a.csv", "--json")
    message = "a.csv:3 column 'x': '1,5' is not a number (decimal comma?)."
    assert (ended.code, ended.err) == (3, f"FileError: {message}\n")
    assert ended.json == {"error": "FileError", "message": message, "exit_code": 3}


def test_flights_are_simulated_into_a_new_folder() -> None:
    ended = uavlab("flights", "make", "logs", "--flights", "2", "--seed", "5", "--json")
    assert (ended.code, ended.err) == (0, "")
    assert sorted(path.name for path in Path("logs").iterdir()) == ["flight_000005.npz", "flight_000006.npz"]
    assert [line.split(",")[0] for line in ended.out.splitlines()[:2]] == [
        "     1 of 2: logs/flight_000005.npz",
        "     2 of 2: logs/flight_000006.npz",
    ]
    assert (ended.json["flights"], ended.json["seed"]) == (2, 5)


def test_a_folder_in_use_is_left_alone() -> None:
    Path("mine.txt").write_text("mine")
    ended = uavlab("flights", "make", ".")
    assert (ended.code, ended.err) == (2, "ConfigError: .: not empty; choose a new folder.\n")
    assert [path.name for path in Path().iterdir()] == ["mine.txt"]
