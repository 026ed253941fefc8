"""The command offers the suites that there are."""

from uavlab.bench.registry import SUITES
from uavlab.cli.measure import SUITES as OFFERED


def test_every_suite_is_offered_and_described() -> None:
    assert list(OFFERED) == list(SUITES)
    assert all(OFFERED.values())
