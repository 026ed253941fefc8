"""What a worker says of an error of an environment."""

import json
import sys

import pytest

from uavlab.workers.spaces import Refusal
from uavlab.workers.worker import LONGEST, Tail, _failure


def test_errors_are_one_line_with_their_place() -> None:
    try:
        json.loads("{")
    except ValueError as error:
        answer = _failure(error, "step")
    assert answer["raised"].startswith("JSONDecodeError: Expecting property name")
    assert " at decoder.py:" in answer["raised"]
    assert answer["trace"].startswith("Traceback")
    assert answer["trace"].endswith(f"{answer['raised'].partition(' at ')[0]}\n")
    assert _failure(Refusal("no.\nmore"), "reset") == {"refused": "no", "doing": "reset", "printed": ""}
    assert _failure(ValueError("a\x1b[2J"), "step")["raised"] == r"ValueError: a\x1b[2J"


def test_a_failure_has_what_was_printed_before(monkeypatch: pytest.MonkeyPatch) -> None:
    tail = Tail()
    monkeypatch.setattr(sys, "stdout", tail)
    print("x" * LONGEST)
    print("last", "words")
    assert len(tail.text) == LONGEST
    assert _failure(ValueError(), "step")["printed"].endswith("x\nlast words\n")
