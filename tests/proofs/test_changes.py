"""Settings that change on a running training, for every task and learner: the bits of a resumed run."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.unit.experiment.test_change import MORE_CASES, require_equal_bits


@pytest.mark.parametrize(("preset", "base", "settings"), MORE_CASES)
def test_a_change_is_a_resumed_run(
    preset: str, base: dict[str, Any], settings: dict[str, Any], tmp_path: Path, proof: Callable[[str, str], None]
) -> None:
    require_equal_bits(preset, base, settings, tmp_path)
    proof(f"a change of {', '.join(settings)} on {preset} that trains", "the bits of a run that is resumed with it")
