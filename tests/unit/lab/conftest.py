"""What all tests of the laboratory share."""

from functools import partial
from pathlib import Path

import pytest

from tests.support.tiny_notebook import Write, write_notebook


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write notebooks into the test's folder."""
    return partial(write_notebook, tmp_path)
