"""A worker answers each line, says what failed, and ends when nobody is there."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from uavlab.workers.spaces import Refusal
from uavlab.workers.worker import LONGEST, Tail, _failure

ROOT = Path(__file__).parents[3]
HERE = "tests.support.strangers"


def talk(factory: str, *lines: Any, arguments: Any = None) -> tuple[list[dict[str, Any]], int]:
    """Return the answers to the first line, which names an environment, and to others, and the exit code."""
    mine, its = socket.socketpair()
    its_alive, alive = os.pipe()
    words = [sys.executable, "-m", "uavlab.workers.worker", str(its.fileno()), str(its_alive)]
    process = subprocess.Popen(words, cwd=ROOT, pass_fds=[its.fileno(), its_alive], process_group=0)
    its.close()
    os.close(its_alive)
    origin = {"kind": "factory", "target": HERE, "factory": factory, "arguments": arguments or {}}
    task = {"origin": origin, "memory": None, "path": [str(ROOT), *sys.path]}
    with mine, mine.makefile("rw") as stream:
        answers = []
        for line in (task, *lines):
            stream.write(json.dumps(line) + "\n")
            stream.flush()
            answers.append(json.loads(stream.readline()))
    code = process.wait(20)
    os.close(alive)
    return answers, code


def test_the_first_answer_describes_and_a_closed_socket_ends_the_process() -> None:
    [answer], code = talk("Hill")
    own = {"name": "agent", "group": "agent", "obs": 4, "action": 2, "choices": 0}
    assert answer["description"]["agents"] == [{**own, "bounds": [-1.0, 1.0], "masked": False}]
    assert code == 0


def test_what_cannot_be_made_ends_it() -> None:
    [answer], code = talk("Meadow", arguments={"size": 1})
    assert answer == {
        "refused": f"{HERE}:Meadow takes no 'size'; its arguments: moves, length, fault, at, cut",
        "doing": "make",
        "printed": "",
    }
    assert code == 0


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
