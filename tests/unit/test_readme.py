"""The tables of README and of the guides are those of the records, and tools/records.sh has the commands of these."""

import json
import re
import subprocess

import pytest

from tools import tables
from tools.tables import records as parts
from uavlab.profiling.timing import ENOUGH
from uavlab_lab.claims.ledger import ledger
from uavlab_lab.claims.report import count_verdicts, rows

PAGES = ("README.md", "tools/records.sh", "docs/measurements.md")
README, SCRIPT, MEASUREMENTS = ((tables.ROOT / name).read_text(encoding="utf-8") for name in PAGES)
RECORDS = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in parts.RECORDS.glob("*.json")}
BY_COMMAND = {name: record for name, record in RECORDS.items() if "command" in record and "nvidia" not in name}

RUNS = (("seed", 0), ("runs", 1))  # options of training, with their defaults

SHELL = """
uavlab() { echo "uavlab $*"; [ "$1" = train ] || return 0; while [ "$1" != --out ]; do shift; done; mkdir -p "$2"; }
pytest() { :; }
python() { echo "python $*"; }
"""
"""Commands that print themselves instead of running; training also makes its folder, for later globs."""


@pytest.mark.parametrize("name", tables.MARKS)
def test_tables_are_the_records(name):
    assert tables.block(name) in (tables.ROOT / name).read_text(encoding="utf-8")


def test_every_proof_is_a_test():
    for proof in tables.read("proofs")["figures"].values():
        file, _, rest = proof["test"].partition("::")
        assert f"def {rest.rpartition('::')[2].partition('[')[0]}(" in (tables.ROOT / file).read_text(encoding="utf-8")


def test_a_changed_number_would_be_seen():
    assert tables.block().replace("[0.", "[1.", 1) not in MEASUREMENTS
    assert tables.block("README.md").replace("[0.", "[1.", 1) not in README


def test_the_page_counts_claims_as_the_command_does():
    listed = rows(ledger(), parts.newest_claims())
    assert count_verdicts(listed) in MEASUREMENTS
    assert count_verdicts(listed[1:]) not in MEASUREMENTS


def normal(command):
    """Return the words of a command in alphabetical order, without folders of runs."""
    words = re.sub(r"(train .*) --out \S+", r"\1", command.replace(" --json", "")).split()
    return tuple(sorted("RUN" if word.startswith(("runs/", "/")) else word for word in words))


def commands(text, folder):
    """Return the commands of all records, also of ended studies, as the shell expands them in an empty folder."""
    call = ["sh", "-c", f"{SHELL}\n{text}", "records.sh", "all", *BY_COMMAND]
    return subprocess.run(call, cwd=folder, capture_output=True, text=True, check=True, timeout=60).stdout.splitlines()


def others(listed):
    """Return the records that no listed command makes, or whose policies none trains."""
    known = set(map(normal, listed))
    parts_of = {name: [record, *record.get("trained", [])] for name, record in BY_COMMAND.items()}
    return {name for name, each in parts_of.items() if {normal(part["command"]) for part in each} - known}


def test_listed_commands_are_those_of_the_records(tmp_path):
    listed = commands(SCRIPT, tmp_path)
    assert others(listed) == set(), "list the command of the record, or make it again"
    names = re.findall(r"--out figures/records/(\w+)\.json", "\n".join(listed))
    assert sorted(names) == sorted(BY_COMMAND)


@pytest.mark.parametrize(
    ("old", "new", "name"),
    [
        ("maps --rounds 10", "maps --rounds 11", "bench_maps"),
        ("for s in 0 1 2; do uavlab train leader", "for s in 0 1 3; do uavlab train leader", "quick_12_minutes"),
        ("--updates 2000", "--updates 2001", "telemetry_tenth"),
    ],
)
def test_a_changed_command_would_be_seen(tmp_path, old, new, name):
    assert name in others(commands(SCRIPT.replace(old, new, 1), tmp_path))


def test_rounds_and_seeds_are_those_of_the_command():
    for name, record in BY_COMMAND.items():
        if "rounds" in record:
            assert int((re.findall(r"--rounds (\d+)", record["command"]) or [30])[0]) == record["rounds"], name
            assert record["rounds"] >= ENOUGH, f"{name}: low and high are no interval"
        for run in record.get("trained", []):
            first, count = (int((re.findall(rf"--{key} (\d+)", run["command"]) or [start])[0]) for key, start in RUNS)
            assert run["seeds"] == list(range(first, first + count)), name


def test_the_time_of_a_quick_training_is_the_recorded_one():
    minutes = parts.trained_row("quick")["minutes"]
    assert f'run = ul.train("leader_follower_quick", out="runs/python")  # about {minutes} minute' in README
