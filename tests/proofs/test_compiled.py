"""Every learner equals the plain reference in the code that the compiler generates, not only in what it traces."""

import pytest

from tests.contracts.test_equality import check_equal, tasks
from uavlab.runtime.toggle_records import EAGER
from uavlab.runtime.toggles import TOGGLES


@pytest.mark.parametrize(("env", "learner"), tasks())
def test_generated_code_equals_plain(env: str, learner: str) -> None:
    check_equal(env, learner, TOGGLES["compile"], {**EAGER, "compile": "default"})
