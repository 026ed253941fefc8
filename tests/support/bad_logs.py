"""The part of the catalogue on logs of flights that are damaged, wrong, or no logs at all."""

import os
import struct
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.support import ulog_writer
from tests.support.bad_inputs import Make, Row
from tests.support.fixtures_telemetry import random_flight, save_log

HEAD = "time,x\n0,1\n"
AGAIN = "copy or save it again."
TRAIN = "train telemetry --updates 1"
NEVER = "has zero variance; nothing can be learned of it. Leave such logs out."


def log(id: str, content: str | bytes | Make, message: str, name: str = "data.csv") -> Row:
    """Return a row with a log that is refused."""
    return Row(id, f"flights describe {name}", message, 3, {name: content})


def read(id: str, content: str | bytes | Make, out: str, name: str = "data.csv") -> Row:
    """Return a row with a log that is read."""
    return Row(id, f"flights describe {name}", code=0, files={name: content}, out=out)


def mapped(id: str, content: str, mapping: str, message: str, code: int = 3) -> Row:
    """Return a row with a log and a mapping that are refused."""
    files = {"data.csv": content, "mine.yaml": mapping}
    return Row(id, "flights describe data.csv --mapping mine.yaml", message, code, files)


def npz(**arrays: Any) -> Make:
    return lambda path: np.savez(path, **{"time": np.arange(3) / 10, **arrays})


def logs(count: int = 4, missing: str = "", **constant: float) -> dict[str, str | bytes | Make]:
    """Return the files of a folder of random logs, in which some columns are constant and one is missing."""

    def write(seed: int) -> Make:
        columns = {name: column for name, column in random_flight(300, seed).items() if name != missing}
        columns |= {name: torch.full((300,), value) for name, value in constant.items()}
        return lambda path: save_log(path, columns)

    return {"logs": Path.mkdir, **{f"logs/{n}.npz": write(n) for n in range(count)}}


def learned(id: str, message: str, command: str = TRAIN, **options: Any) -> Row:
    """Return a row with a folder of logs from which nothing can be learned."""
    return Row(id, f"{command} --set logs=logs", message, 3, logs(**options))


def changed(at: int, keep: float = 1.0) -> Make:
    """Make an NPZ file with a changed byte, or the first part of one."""

    def write(path: Path) -> None:
        npz(x=np.arange(3.0))(path)
        content = bytearray(path.read_bytes())
        content[at] ^= 255
        path.write_bytes(content[: int(len(content) * keep)])

    return write


def bomb(path: Path) -> None:
    """Write a small archive that claims to hold four gigabytes."""
    npz(x=np.arange(3.0))(path)
    content = bytearray(path.read_bytes())
    at = content.rfind(b"PK\x01\x02") + 24  # a member's size in the directory
    content[at : at + 4] = struct.pack("<I", 2**32 - 2)
    path.write_bytes(content)


def unusual(path: Path) -> None:
    """Write a file with another byte order and with columns in Fortran order, which must be read."""
    position = np.asfortranarray(np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]))
    npz(vx=np.arange(3, dtype=">f8"), pos=position)(path)


def huge(path: Path) -> None:
    path.touch()
    os.truncate(path, 5 * 10**9)


ROWS = (
    log(
        "dat-1 missing",
        "tme,x\n0,1\n1,2\n",
        "data.csv: no column 'time' (did you mean 'tme'?); expected time, …; found …; rename columns, or name "
        "their fields in a mapping: uavlab flights describe data.csv --write-mapping data.yaml.",
    ),
    mapped(
        "dat-1 renamed",
        "time,pos_x\n0,1\n0.1,2\n",
        "columns: {x: posx}",
        "data.csv: no column 'posx' (did you mean 'pos_x'?); expected time, posx; found time, pos_x; correct "
        "mine.yaml.",
    ),
    log("dat-1 twice", "time,x,x\n", "data.csv: 'x' is column 2 and column 3; each name may stand there once."),
    log(
        "dat-1 none",
        "0,1\n1,2\n",
        "data.csv: numbers in the first line; expected the names of the columns there.",
    ),
    log(
        "dat-1 unnamed",
        "# a comment\n0,1\n1,2\n",
        "data.csv: numbers in line 2; expected the names of the columns above.",
    ),
    read("dat-1 metadata", "Firmware,4.5\n" + HEAD + "0.1,2\n", r"note: header is line 2, 1 line above it skipped"),
    log("dat-2 ragged", HEAD + "0.1\n", "data.csv:3: 1 cell; expected 2, as in the header."),
    log("dat-2 text", HEAD + "0.1,up\n", "data.csv:3 column 'x': 'up' is not a number."),
    log("dat-2 comma", HEAD + '0.1,"1,5"\n', "data.csv:3 column 'x': '1,5' is not a number (decimal comma?)."),
    log(
        "dat-2 commas",
        HEAD + "0,1,1,5\n",
        "data.csv:3: 4 cells; expected 2, as in the header.",
    ),
    log(
        "dat-2 semicolons",
        "time;x\n0,0;1,5\n",
        "data.csv:2 column 'time': '0,0' is not a number (decimal comma?).",
    ),
    log("dat-2 inf", HEAD + "0.1,inf\n", "data.csv:3 column 'x': inf m; expected -100000 to 100000 m for 'x'."),
    read("dat-2 empty", HEAD + "0.1,\n0.2,nan\n0.3,4\n", r"x +x +m +4 +10\.0 +1 +4 +50\.0%\n"),
    log("dat-3 empty", "", "data.csv: empty; expected a log of a flight."),
    log("dat-3 header", "time,x\n", "data.csv: no rows; at least 2 rows are needed."),
    log("dat-3 row", HEAD, "data.csv: 1 row; at least 2 rows are needed."),
    log(
        "dat-4 latin-1",
        "time,x,°\n".encode("latin-1"),
        "data.csv:1: byte 0xb0 is no text in UTF-8 (UTF-16 or Latin-1?); save the file as UTF-8.",
    ),
    log(
        "dat-4 utf-16",
        HEAD.encode("utf-16"),
        "data.csv:1: byte 0xff is no text in UTF-8 (UTF-16 or Latin-1?); save the file as UTF-8.",
    ),
    log(
        "dat-4 nul",
        HEAD + "0.1,\0\n",
        "data.csv:3: byte 0x00 is no text in UTF-8 (UTF-16 or Latin-1?); save the file as UTF-8.",
    ),
    read("dat-4 bom", b"\xef\xbb\xbf" + HEAD.encode() + b"0.1,2\r\n", r"csv, 0\.1 s\n"),
    log(
        "dat-5 bytes",
        huge,
        "data.csv: 5,000,000,000 bytes; at most 1,073,741,824 are read. Cut the log into parts.",
    ),
    log("dat-5 columns", "x" + ",x" * 10**7, "data.csv: 10,000,001 columns; at most 2,000 are read."),
    log(
        "dat-6",
        npz(x=np.array([{}, {}, {}])),
        "data.npz array 'x': Object arrays cannot be loaded when allow_pickle=False; save plain numbers (dtype "
        "float64), or copy the file again.",
        "data.npz",
    ),
    log(
        "dat-7 corrupted",
        changed(100),
        "data.npz array 'time': Bad CRC-32 for file 'time.npy'; save plain numbers (dtype float64), or copy the file "
        "again.",
        "data.npz",
    ),
    log(
        "dat-7 truncated",
        changed(100, 0.5),
        f"data.npz: damaged, or no NPZ file: File is not a zip file; {AGAIN}",
        "data.npz",
    ),
    log(
        "dat-7 length",
        npz(x=np.arange(2.0)),
        "data.npz: 3 values in 'time', 2 in 'x'; expected one for each time in both.",
        "data.npz",
    ),
    log(
        "dat-7 dtype",
        npz(x=np.array(["a", "b", "c"])),
        "data.npz column 'x': <U1 of shape (3,); expected numbers in one row for each time.",
        "data.npz",
    ),
    log(
        "dat-7 bomb",
        bomb,
        "data.npz: 4,294,967,446 bytes when unpacked; at most 1,073,741,824 are read. Cut the log into parts.",
        "data.npz",
    ),
    log(
        "dat-7 parquet",
        b"PAR1" + bytes(99),
        f"data.parquet: damaged, or no Parquet file: Parquet magic bytes not found in footer. …; {AGAIN}",
        "data.parquet",
    ),
    log(
        "dat-7 ulog",
        ulog_writer.old()[:-50],
        "data.ulg: cut off in the middle of a message; copy the log again.",
        "data.ulg",
    ),
    log(
        "dat-7 no ulog",
        HEAD,
        "data.ulg: not a ULog file; one begins with the bytes 55 4c 6f 67 01 12 35.",
        "data.ulg",
    ),
    read("dat-7 order", unusual, r"(?s)vx +vx +m/s +3 .*pos\[1\] +\? +3 +2 +6 ", "data.npz"),
    read("dat-8 order", HEAD + "0.2,1\n0.1,1\n", r"note: table: time goes back 1x, first in data\.csv:4; rows are"),
    log(
        "dat-8 twice",
        HEAD + "0.2,1\n0.2,1\n",
        "data.csv:4 column 'time': 0.2, the time of data.csv:3 once more; expected one row for each time. Cut one of "
        "these rows out.",
    ),
    log(
        "dat-8 zones",
        "time,x\n2024-05-01T10:00+02:00,1\n",
        "data.csv:2 column 'time': '2024-05-01T10:00+02:00' is not a number (a date or a time of day? Write seconds).",
    ),
    log(
        "dat-8 unit",
        HEAD + "10000,1\n20000,1\n",
        "data.csv column 'time': 10000 from row to row; expected seconds, less than 1 (is it in us? A mapping names "
        "units).",
    ),
    Row(
        "dat-9 sound",
        "check telemetry --set logs=logs",
        code=0,
        files=logs(),
        out=r"can be learned from\.\n  flights   2 for training, 1 for validation, 1 for test\n",
    ),
    learned("dat-9", f"flights: feature 23 (voltage) {NEVER}", voltage=14.8),
    learned(
        "dat-9 files", f"flights: feature 23 (voltage) {NEVER}", "train telemetry --set loader=stream", voltage=14.8
    ),
    learned("dat-9 check", f"flights: feature 19 (motor_1) {NEVER}", "check telemetry", motor_1=0.6),
    learned("dat-9 truth", f"flights: feature 3 (drag) {NEVER}", drag=0.2),
    learned(
        "dat-9 unknown", "logs/0.npz: does not hold drag; only logs with the truth can be learned from.", missing="drag"
    ),
    learned("dat-9 few", "flights: 2 cannot be split into training, validation and test; expected 3 or more.", count=2),
    log("dat-11 pipe", os.mkfifo, "data.csv: not readable: not a regular file."),
    log("dat-11 folder", Path.mkdir, "data.csv: not readable: not a regular file."),
    log(
        "dat-11 loop",
        lambda path: path.symlink_to(path.name),
        "data.csv: not readable: Too many levels of symbolic links.",
    ),
    Row("dat-11 device", "flights describe /dev/zero", "/dev/zero: not readable: not a regular file.", 3),
    log("dat-12", "time,vx\n0,1\n0.1,1e6\n", "data.csv:3 column 'vx': 1000000 m/s; expected -150 to 150 m/s for 'vx'."),
    log(
        "dat-12 unit",
        "time,p\n0,0.1\n0.1,-312.5\n",
        "data.csv:3 column 'p': -312.5 rad/s; expected -40 to 40 rad/s for 'p' (is it in deg/s? A mapping names "
        "units).",
    ),
    mapped(
        "dat-12 known",
        HEAD,
        "columns: {x: {from: x, unit: deg/s}}",
        "mine.yaml: columns.x: unit 'deg/s' of 'x' is one of rad/s, not of m. Known units of 'x': m, mm, cm, km, ft.",
        2,
    ),
    log(
        "dat-12 length",
        "time,qw,qx,qy,qz\n0,1,0,0,0\n0.1,1,1,0,0\n",
        "data.csv:3 columns qw, qx, qy, qz: a quaternion of length 1.414; expected 1 within 0.05. Check the columns' "
        "order and scale.",
    ),
    *(
        Row(f"loader {text}", f"train telemetry --set {text}", f"telemetry: {message} from --set.")
        for text, message in (
            ("prefetch_factor=0", "prefetch_factor: input should be greater than or equal to 1, got 0"),
            ("prefetch_factor=65", "prefetch_factor: input should be less than or equal to 64, got 65"),
            ("persistent_workers=on", "persistent_workers: input should be a valid boolean, got 'on'"),
            ("pinned=1", "pinned: input should be a valid boolean, got 1"),
            ("cached=disk", "cached: input should be a valid boolean, got 'disk'"),
        )
    ),
    Row(
        "mem-1 flights",
        "train telemetry --set flights=100000 --set least=100000 --set most=100000",
        "flights: 1,680,000,000,000 bytes, … are free on cpu; lower their number, or --set loader=stream.",
        5,
    ),
)
