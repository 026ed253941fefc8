"""The table of columns is whole: what every other table of the readers is compared with."""

from uavlab.telemetry.logs.columns import COLUMNS, FORCE, INPUTS, QUATERNION, TIME, TRUTH


def test_every_column_is_described_and_has_a_range() -> None:
    assert list(COLUMNS) == [TIME.name, *INPUTS, *TRUTH]
    assert len(COLUMNS) == 1 + 28 + 9
    for name, column in COLUMNS.items():
        assert column.name == name
        assert column.meaning
        assert column.low < column.high


def test_commands_are_held_and_nothing_else() -> None:
    held = [name for name, column in COLUMNS.items() if column.held]
    assert held == [
        *("ref_x", "ref_y", "ref_z", "ref_vx", "ref_vy", "ref_vz"),
        *("motor_1", "motor_2", "motor_3", "motor_4"),
    ]


def test_groups_of_columns_are_columns() -> None:
    assert {*FORCE, *QUATERNION} <= set(INPUTS)
