"""Layers of settings: later ones win, and each value keeps its origin."""

from pathlib import Path

import pytest

from uavlab.core.errors import ConfigError
from uavlab.experiment.layers import Layer, merge, parse_setting, read_yaml, set_layer


def test_later_layers_win_with_their_origins(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("lr: 0.1\n\nbatch: 8\n")
    values, origins = merge([{"seed": 1}, read_yaml(file), set_layer(["lr=0.2"]), Layer({"runs": 3}, {})])
    assert values == {"seed": 1, "lr": 0.2, "batch": 8, "runs": 3}
    assert origins == {"seed": "", "lr": " from --set", "batch": f" from {file}:3", "runs": ""}


@pytest.mark.parametrize("text", ["lr", "=1", " = 1", "lr=[", "lr=!!python/name:os.system"])
def test_what_is_no_setting_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--set"):
        set_layer([text])


def test_values_are_yaml() -> None:
    assert parse_setting(" lr = 1e-3") == ("lr", 1e-3)
    assert parse_setting("x=[1, a]") == ("x", [1, "a"])
