"""The tables of README and RELIABILITY are those of the records, and every proof is a test."""

import pytest

from tools import tables
from uavlab.benchmarks.claims.ledger import ledger
from uavlab.benchmarks.claims.report import count_verdicts, rows

README = (tables.ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", tables.MARKS)
def test_tables_are_the_records(name):
    assert tables.block(name) in (tables.ROOT / name).read_text(encoding="utf-8")


def test_every_proof_is_a_test():
    for proof in tables.read("proofs")["figures"].values():
        file, _, rest = proof["test"].partition("::")
        assert f"def {rest.rpartition('::')[2].partition('[')[0]}(" in (tables.ROOT / file).read_text(encoding="utf-8")


def test_a_changed_number_would_be_seen():
    assert tables.block().replace("[0.", "[1.", 1) not in README


def test_the_readme_counts_claims_as_the_command_does():
    listed = rows(ledger(), tables.read("claims_amd-epyc-family-25-model-17-stepping-1-2-cores"))
    assert count_verdicts(listed) in README
    assert count_verdicts(listed[1:]) not in README
