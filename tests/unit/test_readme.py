"""The README's numbers are those of the records, and its environment in one file works as printed."""

import re
import subprocess
import sys

import pytest

from tools import tables

README = (tables.ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", tables.MARKS)
def test_tables_are_the_records(name):
    assert tables.block(name) in (tables.ROOT / name).read_text(encoding="utf-8")


def test_every_proof_is_a_test():
    for found in tables.read("proofs")["figures"].values():
        file, _, rest = found["test"].partition("::")
        assert f"def {rest.rpartition('::')[2].partition('[')[0]}(" in (tables.ROOT / file).read_text(encoding="utf-8")


def test_a_changed_number_would_be_seen():
    assert tables.block().replace("[0.", "[1.", 1) not in README


def test_environment_in_one_file(tmp_path):
    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    file = tmp_path / "chase.py"
    file.write_text(code, encoding="utf-8")
    run = tmp_path / "run"
    small = ["--set", "hidden=8", "--set", "worlds=4", "--set", "learning_starts=32", "--set", "evaluate_episodes=4"]
    for command, said in (
        (["check", "chase"], "keeps the contract of an environment"),
        (["train", "chase", "--updates", "20", "--out", str(run), *small], "complete: 20 updates"),
        (["evaluate", str(run), "--episodes", "4"], "caught"),
    ):
        done = subprocess.run([sys.executable, str(file), *command], capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        assert said in done.stdout
    file.write_text(code.replace("agents=2", "agents=3").replace("(0, 0)", "(0, 0, 0)"), encoding="utf-8")
    broken = subprocess.run([sys.executable, str(file), "check", "chase"], capture_output=True, text=True, timeout=120)
    assert (broken.returncode, broken.stderr.count("\n")) == (2, 1), broken.stderr
    assert broken.stderr.startswith("ConfigError: Chase.")
