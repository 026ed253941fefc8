"""Costs of networks have a panel each for time, memory and ratio, and a line for each setting."""

from typing import Any

import pytest

from uavlab.core.errors import ConfigError
from uavlab_lab.plots.network_costs import LABELS, network_costs

SIZES = ((3, 2), (6, 4), (20, 15))


def row(size: tuple[int, int], setting: str, network: str = "small", batch: int = 32) -> dict[str, Any]:
    number = SIZES.index(size) + 10 * list(LABELS).index(setting) + (0 if network == "small" else 500)
    return {
        **{"uavs": size[0], "targets": size[1], "setting": setting, "network": network, "batch": batch},
        **{"ms": 1.0 + number, "peak_bytes": 1000 * (1 + number), "over_plain": 2.0, "low": 1.5, "high": 3.0},
    }


ROWS = [row(size, setting, network) for network in ("small", "large") for size in SIZES for setting in LABELS]


def test_a_line_for_each_setting_in_each_panel() -> None:
    figure = network_costs(ROWS, "small", 32, title="A title", caption="A caption")
    assert [(trace.name, trace.yaxis) for trace in figure.data] == [
        (label, axis) for axis in ("y", "y2", "y3") for label in LABELS.values()
    ]
    time, memory, over = (figure.data[len(LABELS) * panel + 3] for panel in range(3))  # of layers
    assert list(time.x) == ["3 x 2", "6 x 4", "20 x 15"]
    assert list(time.y) == [31.0, 32.0, 33.0]
    assert list(memory.y) == [31000.0, 32000.0, 33000.0]
    assert (list(over.error_y.array), list(over.error_y.arrayminus)) == ([1.0] * 3, [0.5] * 3)
    assert time.error_y.array is None
    assert figure.layout.title.text == "A title"
    assert figure.layout.title.subtitle.text == "A caption"


def test_the_legend_names_each_once() -> None:
    shown = [trace.name for trace in network_costs(ROWS, "large", 32).data if trace.showlegend]
    assert shown == list(LABELS.values())


def test_times_and_memory_are_on_logarithmic_axes_and_ratios_are_not() -> None:
    layout = network_costs(ROWS, "small", 32).layout
    assert [axis.type for axis in (layout.yaxis, layout.yaxis2, layout.yaxis3)] == ["log", "log", None]


def test_what_the_record_lacks_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"no row of network 'small' and batch 7; expected one of .*'large', 32"):
        network_costs(ROWS, "small", 7)
