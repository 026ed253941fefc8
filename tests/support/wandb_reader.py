"""Read the rows of an offline run of W&B: records of protocol buffers in blocks, as in LevelDB's log files."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from wandb.proto import wandb_internal_pb2

BLOCK, HEADER = 32768, 7  # bytes of a block, and of what precedes each piece of a record
START = 7  # bytes before the first piece
WHOLE, LAST = 1, 4  # kinds of pieces that end a record


def records(path: Path) -> Iterator[Any]:
    """Yield the records of a file ``run-ID.wandb``."""
    data, at, record = path.read_bytes(), START, b""
    while at + HEADER <= len(data):
        if BLOCK - at % BLOCK < HEADER:  # no header fits into the rest of a block
            at += BLOCK - at % BLOCK
            continue
        length, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        record += data[at + HEADER : at + HEADER + length]
        at += HEADER + length
        if kind in (WHOLE, LAST):
            yield wandb_internal_pb2.Record.FromString(record)
            record = b""


def offline_runs(folder: Path) -> list[list[Any]]:
    """Return the records of each offline run in the folder of a run, in the order of time."""
    return [list(records(path)) for path in sorted(folder.glob("wandb/offline-run-*/run-*.wandb"))]


def rows(run: list[Any]) -> list[dict[str, Any]]:
    """Return the rows of a run by name, without those that W&B adds."""
    tables = [
        {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
        for record in run
        if record.WhichOneof("record_type") == "history"
    ]
    return [{name: value for name, value in row.items() if name[0] != "_"} for row in tables]


def settings(run: list[Any]) -> dict[str, Any]:
    """Return the settings of a run by name."""
    values: dict[str, Any] = {}
    for record in run:
        kind = record.WhichOneof("record_type")
        update = record.run.config.update if kind == "run" else record.config.update if kind == "config" else ()
        values |= {item.key: json.loads(item.value_json) for item in update if item.key}
    return values


def heads(run: list[Any]) -> list[tuple[str, str, str]]:
    """Return id, project and name of a run."""
    starts = [record.run for record in run if record.WhichOneof("record_type") == "run"]
    return [(each.run_id, each.project, each.display_name) for each in starts]
