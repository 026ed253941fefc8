"""The package's own toggles: each record is whole, and the named sets are made of them."""

import pytest

from uavlab.runtime.toggles import EAGER, TOGGLES, Toggle

PARTS = {"", "team", "replay", "logs", "maps"}


@pytest.mark.parametrize("toggle", TOGGLES.values(), ids=lambda toggle: toggle.name)
def test_a_record_is_whole(toggle: Toggle) -> None:
    assert toggle.equality in {"exact", "rounding", "single", "precision", "algorithm"}
    assert toggle.claim
    assert toggle.cost
    assert toggle.seam
    assert toggle.part in PARTS
    if toggle.choices:
        assert toggle.choices[0] == toggle.default  # lists begin with the plain reference
    if toggle.eager is not None:
        assert toggle.eager in toggle.choices
        assert toggle.equality != "algorithm"  # runs start from this set, which computes the reference's numbers


def test_eager_is_what_the_records_say() -> None:
    assert {name: value for name, value in EAGER.items() if value == TOGGLES[name].default} == {}
