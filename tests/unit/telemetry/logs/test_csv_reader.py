"""Tables of text in all ways of writing them; messages name the line of what is wrong."""

import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from uavlab.core.errors import FileError
from uavlab.telemetry.logs import raw, tables
from uavlab.telemetry.logs.raw import RawLog
from uavlab.telemetry.logs.tables import read_csv


def read(folder: Path, content: str | bytes, needed: str = "time x", others: bool = True) -> RawLog:
    path = folder / "data.csv"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return read_csv(path, needed.split(), others)


def fields(table: RawLog) -> dict[str, list[float]]:
    return {name: values.tolist() for name, values in table.groups[""].fields.items()}


PLAIN = {"time": [0.0, 0.5], "x": [1.0, -2e-3]}


@pytest.mark.parametrize(
    "content",
    [
        "time,x\n0,1\n0.5,-2e-3\n",
        "time;x\n0;1\n.5;-.2E-2",
        "time\tx\r\n0\t1.\r\n0.5\t-0.002\r\n",
        '# time, "x"\n'.replace(' "x"', "x") + "0,1\n\n 0.5 ,\t-0.002\n\n",
        '\n\n"time","x"\n"0","1"\n+0.5,-0.002\n',
        b"\xef\xbb\xbftime,x\n0,1\n0.5,-0.002\n",
    ],
)
def test_ways_of_writing_the_same(tmp_path: Path, content: str | bytes) -> None:
    assert fields(read(tmp_path, content)) == PLAIN


def test_lines_of_comments_are_counted(tmp_path: Path) -> None:
    table = read(tmp_path, "time,x\n0,1\n# landed\n0.5,-2e-3\n# end, of log\n")
    assert fields(table) == PLAIN
    assert table.notes == ("2 lines below the header begin with # and are skipped",)
    assert table.groups[""].locate(1).endswith("data.csv:4")


def test_cells_without_a_value(tmp_path: Path) -> None:
    table = read(tmp_path, "time,x\n0,\n1, \n2,NaN\n3,inf\n4,-Infinity\n")
    assert np.isnan(table.groups[""].fields["x"][:3]).all()
    assert table.groups[""].fields["x"][3:].tolist() == [np.inf, -np.inf]


def test_lines_are_those_of_an_editor(tmp_path: Path) -> None:
    table = read(tmp_path, 'time,x,text\n0,1,a\n\n1,2,"b\nc"\n2,3,d\n')
    assert table.groups[""].locate(0).endswith("data.csv:2")
    assert table.groups[""].locate(1).endswith("data.csv:5")  # where its last cell ends
    assert table.groups[""].locate(2).endswith("data.csv:6")
    assert table.others == ("text",)


def test_other_columns_are_read_or_left(tmp_path: Path) -> None:
    content = "time,mode,y,,x\n0,AUTO_1,2,3,4\n1,HOLD,5,6,7\n"
    assert list(fields(read(tmp_path, content))) == ["time", "y", "column 4", "x"]
    assert list(fields(read(tmp_path, content, others=False))) == ["time", "x"]
    assert read(tmp_path, content, others=False).others == ("mode", "y", "column 4")


def test_long_tables_are_read_in_chunks(tmp_path: Path) -> None:
    rows = tables.CELLS + 3  # of two cells
    content = "time,x\n" + "".join(f"{n},{n * 2}\n" for n in range(rows))
    assert fields(read(tmp_path, content))["x"] == [2.0 * n for n in range(rows)]
    broken = content.replace(f"\n{rows - 2},", f"\n{rows - 2},o")
    with pytest.raises(FileError, match=rf"data\.csv:{rows} column 'x': 'o{2 * rows - 4}' is not a number\.$"):
        read(tmp_path, broken)


ROWS = "0,1\n1,2\n"
REFUSED = [
    ("", "{}: empty; expected a log of a flight."),
    (" \n\n", "{}: empty; expected a log of a flight."),
    ("time,x\n", "{}: no rows; at least 2 rows are needed."),
    ("time,x\n0,1\n", "{}: 1 row; at least 2 rows are needed."),
    (ROWS, "{}: numbers in the first line; expected the names of the columns there."),
    ("time,x,x\n", "{}: 'x' is column 2 and column 3; each name may stand there once."),
    ("time,x\n0,1\n1\n", "{}:3: 1 cell; expected 2, as in the header."),
    ("time,x\n0,1\n1,5,2,5\n", "{}:3: 4 cells; expected 2, as in the header."),
    ("time,x\n0,0,1,5\n1,0,2,5\n", "{}:2: 4 cells; expected 2, as in the header."),
    ("time;x\n0;1\n1;2;3\n", "{}:3: 3 cells; expected 2, as in the header."),
    ("time,x\n0,1\n1,5,2,5,3,5\n", "{}:3: 6 cells; expected 2, as in the header."),
    ("# by me\n0,1\n1,2\n", "{}: numbers in line 2; expected the names of the columns above."),
    ("# time,x,y\n0,1\n1,2\n", "{}: numbers in line 2; expected the names of the columns above."),
    ("sep=;\ntime;x\n0,0;1\n0,5;2\n", "{}:3 column 'time': '0,0' is not a number (decimal comma?)."),
    ("time,x\n0,up\n1,2\n", "{}:2 column 'x': 'up' is not a number."),
    ("time,x\n0,1_0\n1,2\n", "{}:2 column 'x': '1_0' is not a number."),
    ("time,x\n0,٣\n1,2\n", "{}:2 column 'x': '٣' is not a number."),
    ("time,x\n0,0x1F\n1,2\n", "{}:2 column 'x': '0x1F' is not a number."),
    ('time,x\n0,1\n1,"1,5"\n', "{}:3 column 'x': '1,5' is not a number (decimal comma?)."),
    ("time;x\n0;1\n0,5;2\n", "{}:3 column 'time': '0,5' is not a number (decimal comma?)."),
    (
        "time,x\n12:30:45,1\n12:30:46,2\n",
        "{}:2 column 'time': '12:30:45' is not a number (a date or a time of day? Write seconds).",
    ),
    (
        "time,x\n2024-05-01T10:00:00+02:00,1\n",
        "{}:2 column 'time': '2024-05-01T10:00:00+02:00' is not a number (a date or a time of day? Write seconds).",
    ),
    (
        "time,x\n0,1\n".encode("utf-16"),
        "{}:1: byte 0xff is no text in UTF-8 (UTF-16 or Latin-1?); save the file as UTF-8.",
    ),
    (
        "time,x\n0,1\n".encode("utf-16-be"),
        "{}:1: byte 0x00 is no text in UTF-8 (UTF-16 or Latin-1?); save the file as UTF-8.",
    ),
    (
        "time,x\n0,1\n".encode("utf-32"),
        "{}:1: byte 0xff is no text in UTF-8 (UTF-16 or Latin-1?); save the file as UTF-8.",
    ),
    (b"time,x\n0,1\n1,2\0\n", "{}:3: byte 0x00 is no text in UTF-8 (UTF-16 or Latin-1?); save the file as UTF-8."),
    (
        "time,x,°\n".encode("latin-1"),
        "{}:1: byte 0xb0 is no text in UTF-8 (UTF-16 or Latin-1?); save the file as UTF-8.",
    ),
    ('time,x\n0,"1\n1,2\n', "{}:3: unexpected end of data; check the quotes there."),
    ('time,x\n0,"' + "1" * 200_000 + '"\n', "{}:2: field larger than field limit (131072); check the quotes there."),
    ("time" + ",c" * 2000 + "\n", "{}: 2,001 columns; at most 2,000 are read."),
]


@pytest.mark.parametrize(("content", "message"), REFUSED, ids=[message[:60] for _, message in REFUSED])
def test_a_bad_table_is_refused(tmp_path: Path, content: str | bytes, message: str) -> None:
    with pytest.raises(FileError) as refusal:
        read(tmp_path, content)
    assert str(refusal.value) == message.format(tmp_path / "data.csv")


def test_numbers_that_take_more_than_their_text_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = "time,x,a\n" + "0,1,2\n" * 9_000
    monkeypatch.setattr(raw, "LARGEST", 280_000)
    monkeypatch.setattr(tables, "CELLS", 3 * 1000)
    with pytest.raises(FileError, match=r"data\.csv: 288,000 bytes or more as numbers; at most 280,000 are read\."):
        read(tmp_path, table)  # 8 bytes for each number and for its line
    assert len(read(tmp_path, table, others=False).groups[""].fields["x"]) == 9_000


def test_text_is_held_with_one_byte_for_a_character(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = "time,x,a\n" + f"0,1,{'a' * 1000}\n" * 2000
    monkeypatch.setattr(tables, "CELLS", 300)
    (tmp_path / "data.csv").write_text(content)
    tracemalloc.start()
    read_csv(tmp_path / "data.csv", ["time", "x"])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 * len(content)
