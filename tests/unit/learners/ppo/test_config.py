"""Settings of MAPPO and IPPO: what differs, and which values are refused."""

from dataclasses import fields

import pytest

from uavlab.core.errors import ConfigError
from uavlab.experiment.config import configure
from uavlab.learners.ppo.ppo import IPPOConfig, MAPPOConfig


def test_ippo_is_mappo_with_critics_of_one_agent() -> None:
    one, other = (vars(kind()) for kind in (MAPPOConfig, IPPOConfig))
    assert {name for name in one if one[name] != other[name]} == {"critic"}
    assert (one["critic"], other["critic"], one["memory"]) == ("central", "own", 0)
    assert [each.name for each in fields(MAPPOConfig)] == [each.name for each in fields(IPPOConfig)]


@pytest.mark.parametrize(
    "wrong", [{"learner": "ippo", "critic": "central"}, {"learner": "mappo", "memory": -1}, {"memory": 8}]
)
def test_values_that_do_not_fit_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="critic" if "critic" in wrong else "memory"):
        configure("spread", wrong)
    configure("spread", {"learner": "ippo", "critic": "own", "memory": 8})
