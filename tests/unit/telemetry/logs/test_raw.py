"""Fields are found by their full names, and rows know where they are."""

from pathlib import Path

import numpy as np

from uavlab.telemetry.logs.raw import Group, Recording, listed, quoted

VALUES = np.arange(3.0)


def test_fields_of_topics() -> None:
    topics = {name: Group(name, f"a.ulg {name}", {"x": VALUES, "current.lat": VALUES}) for name in ("pos", "pos#1")}
    recording = Recording("a.ulg", "ulog", topics)
    assert recording.find("pos.x") == (topics["pos"], "x")
    assert recording.find("pos#0.x") == (topics["pos"], "x")
    assert recording.find("pos#1.current.lat") == (topics["pos#1"], "current.lat")
    for name in ("pos", "pos.y", "pos#2.x", "x", ""):
        assert recording.find(name) is None
    assert recording.names() == ["pos.x", "pos.current.lat", "pos#1.x", "pos#1.current.lat"]
    assert topics["pos"].place(2) == "a.ulg pos row 2"
    assert topics["pos"].rows == 3


def test_fields_of_a_table() -> None:
    group = Group("", "a.csv", {"pos.x": VALUES}, lines=np.array([2, 3, 5]))
    recording = Recording(str(Path("a.csv")), "csv", {"": group})
    assert recording.find("pos.x") == (group, "pos.x")
    assert recording.find("x") is None
    assert recording.names() == ["pos.x"]
    assert group.place(2) == "a.csv:5"


def test_names_are_quoted_on_one_line() -> None:
    assert quoted("vehicle_local_position_setpoint.acceleration[0]") == (
        "'vehicle_local_position_setpoint.acceleration[0]'"
    )
    assert quoted("a\n" + "b" * 999) == r"'a\n" + "b" * 78 + "'"


def test_lists_of_names_are_short() -> None:
    assert listed([]) == "none"
    assert listed(["a", "b\n"]) == r"a, b\n"
    assert listed([f"c{n}" for n in range(22)]).endswith("c19 and 2 more")
