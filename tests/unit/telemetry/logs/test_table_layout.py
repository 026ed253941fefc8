"""The separator and the header of a table are found, whatever stands above it; notes name what was skipped."""

from pathlib import Path

import pytest

from tests.unit.telemetry.logs.test_csv_reader import PLAIN, fields, read
from uavlab.telemetry.logs.tables import find_layout

HEADERS = [
    ('"Product","Blackbox"\n"looptime","125"\n\n"time","x"\n', ("header is line 4, 2 lines above it skipped",)),
    ("Product,Blackbox\n# by me, or you\ntime,x\n", ("header is line 3, 2 lines above it skipped",)),
    ("# one\n# two, three, four\n# time,x\n", ("header is line 3, 2 lines above it skipped",)),
    ("sep=,\ntime,x\n", ("header is line 2, 1 line above it skipped",)),
    ("time,x\ns,m\n", ("line 2 holds units, which are not read",)),
    ("time,x\n[s],[m]\n", ("line 2 holds units, which are not read",)),
    ("a log\ntime,x\n# measured, twice\n", ("header is line 2, 1 line above it skipped",)),
    ("\ufefftime,x\n# measured once\n", ()),
    ("\ufeffsep=,\r\n time , x\r\n", ("header is line 2, 1 line above it skipped",)),
]


@pytest.mark.parametrize("separator", [",", ";", "\t"])
@pytest.mark.parametrize(("above", "notes"), HEADERS)
def test_the_header_is_the_line_with_as_many_cells_as_those_below(
    tmp_path: Path, above: str, notes: tuple[str, ...], separator: str
) -> None:
    content = (above + "0,1\n0.5,-2e-3\n").replace(",", separator)
    table = read(tmp_path, content)
    assert fields(table) == PLAIN
    assert table.notes == tuple(note.replace(",", separator) if "," in note[:2] else note for note in notes)
    assert table.groups[""].locate(0).endswith(f"data.csv:{above.count(chr(10)) + 1}")


def test_a_long_head_is_skipped(tmp_path: Path) -> None:
    """Betaflight's explorer writes more lines of metadata than a short log has rows."""
    head = "".join(f'"setting {n}","{n},{n}"\n' for n in range(200))
    table = read(tmp_path, head + '"time","x","y"\n0,1,2\n0.5,-2e-3,3\n')
    assert fields(table) == {**PLAIN, "y": [2, 3]}
    assert table.notes == ("header is line 201, 200 lines above it skipped",)


@pytest.mark.parametrize(
    ("content", "names"),
    [
        ("# id time x\n7 0 1\n9 0.5 -2e-3\n", ["id", "time", "x"]),
        ("#time x\n0 1\n0.5 -2e-3\n", ["time", "x"]),
        ("  time   x\n   0     1  \n 0.5  -2e-3\n", ["time", "x"]),
        ("time \t x\n0 \t1\n0.5\t -2e-3\n", ["time", "x"]),
        ("made by me\n# see also that page\ntime x\n0 1\n0.5 -2e-3\n", ["time", "x"]),
        ('"time" "x"\n"0" 0 1\n"1" 0.5 -2e-3\n', ["column 1", "time", "x"]),  # as R writes it
    ],
)
def test_blanks_between_cells(tmp_path: Path, content: str, names: list[str]) -> None:
    table = read(tmp_path, content)
    assert list(fields(table)) == names
    assert {name: fields(table)[name] for name in PLAIN} == PLAIN
    assert ("cells are separated by blanks" in table.notes) is ("\t" not in content)


@pytest.mark.parametrize(
    ("content", "names"),
    [
        (",time,x\n0,0,1\n1,0.5,-2e-3\n", ["column 1", "time", "x"]),  # as pandas writes it
        ("time;x\n0;0;1\n1;0.5;-2e-3\n", ["column 1", "time", "x"]),
        ("time,x,\n0,1,\n0.5,-2e-3,\n", ["time", "x", "column 3"]),
        ("time,x\n0,1,\n0.5,-2e-3,\n", ["time", "x", "column 3"]),
        ("time,x,note\n0,1,a b c d\n0.5,-2e-3,e f g h\n", ["time", "x"]),
    ],
)
def test_columns_without_a_name(tmp_path: Path, content: str, names: list[str]) -> None:
    table = fields(read(tmp_path, content))
    assert list(table) == names
    assert {name: table[name] for name in PLAIN} == PLAIN


@pytest.mark.parametrize(
    ("table", "separator", "names", "skipped"),
    [
        ("time\tx\tflight mode\n0.0\t1\tPOS HOLD\n0.1\t2\tLAND", "\t", ["time", "x", "flight mode"], 1),
        ("time\tx\ty\tmode\n0.0\t1\t4\tA B\n0.1\t\t5\tPOS HOLD", "\t", ["time", "x", "y", "mode"], 1),
        ("Created: 2024-05-01 10:22:33\ntime,x,y\n0.0,1,2", ",", ["time", "x", "y"], 2),
        ("Date: 2024-05-01,Pilot: me\ntime,x\n0.0,1\n0.1,1", ",", ["time", "x"], 2),
        ("mode,x,y,time\nMANUAL,,,0.0\nMANUAL,1,2,0.1", ",", ["mode", "x", "y", "time"], 1),
        ("mode,x,y,time\nok,,,0.0\n,,,\nok,1,2,0.1", ",", ["mode", "x", "y", "time"], 1),
        ("time,x\n2024-05-01 10:00:00,1\n2024-05-01 10:00:01,2", ",", ["time", "x"], 1),
    ],
)
def test_blanks_dates_and_sparse_rows(table: str, separator: str, names: list[str], skipped: int) -> None:
    layout = find_layout(Path("a.csv"), table.encode(), table.splitlines()[0])
    assert (layout.separator, layout.names, layout.skipped) == (separator, names, skipped)
