"""Commands are recorded and recommended as they would be typed."""

import sys

import pytest

from uavlab.core import installation


@pytest.mark.parametrize(
    ("arguments", "command"),
    [
        (["/x/.venv/bin/uavlab", "train", "a b"], "uavlab train 'a b'"),
        (["/x/uavlab/__main__.py", "lab"], "uavlab lab"),
        (["/x/pytest/__main__.py", "-q"], ""),
        (["/x/ipykernel_launcher.py", "-f", "k.json"], ""),
    ],
)
def test_the_command_is_recorded_as_it_would_be_typed(
    monkeypatch: pytest.MonkeyPatch, arguments: list[str], command: str
) -> None:
    monkeypatch.setattr(sys, "argv", arguments)
    assert installation.invocation() == command


@pytest.mark.parametrize(
    ("called", "program"),
    [
        ("/x/.venv/bin/uavlab", "uavlab"),
        ("/x/uavlab/__main__.py", "uavlab"),
        ("/x/ipykernel_launcher.py", "uavlab"),
        ("spread.py", "python spread.py"),
        ("my files/spread.py", "python 'my files/spread.py'"),
    ],
)
def test_the_program_is_that_of_the_command(monkeypatch: pytest.MonkeyPatch, called: str, program: str) -> None:
    monkeypatch.setattr(sys, "argv", [called, "train"])
    assert installation.program() == program


def test_a_checkout_has_its_own_notebooks_and_records() -> None:
    assert not installation.INSTALLED
    assert (installation.ROOT / "notebooks" / "00_tour.ipynb").exists()
    assert (installation.ROOT / "figures" / "records" / "quick.json").exists()
