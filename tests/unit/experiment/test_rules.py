"""Each constraint refuses what it is about, and accepts what is at its limit."""

from typing import Any

import pytest

from tests.support.fixtures_config import tiny
from uavlab.core.errors import ConfigError
from uavlab.experiment.config import RULES

REFUSED: list[dict[str, Any]] = [
    {"batch": 33},
    {"worlds": 33},
    {"learning_starts": 33},
    {"graph": "cycle", "world_steps": 3},
    {"wandb": "a/b"},
    {"mlflow": ""},
    {"updates": None, "minutes": None},
    {"log_std_low": 0.0, "log_std_high": 0.0},
]
AT_LIMIT: list[dict[str, Any]] = [
    *({name: 32} for name in ("batch", "worlds", "learning_starts")),
    {"graph": "cycle", "world_steps": 4},
    {"wandb": "a b"},
    {"mlflow": "runs/ml"},
    {"updates": None, "minutes": 1.0},
    {"log_std_low": -0.1, "log_std_high": 0.0},
]


@pytest.mark.parametrize(("rule", "refused", "accepted"), [*zip(RULES, REFUSED, AT_LIMIT, strict=True)])
def test_each_rule(rule: Any, refused: dict[str, Any], accepted: dict[str, Any]) -> None:
    names, _, message = rule
    with pytest.raises(ConfigError) as caught:
        tiny(**refused)
    values = {"capacity": 32, **refused}
    assert message.format(*(values[name] for name in names)) in str(caught.value)
    tiny(**accepted)
