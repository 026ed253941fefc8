"""Names that are nearly right are recognised; text is a plain value or a refusal that says where."""

import math
from typing import Any

import pytest

from uavlab.core.errors import ConfigError
from uavlab.core.text import nearest, yaml_value


def test_suggestions() -> None:
    assert nearest("lerning_starts", ["learning_starts", "seed"]) == " (did you mean 'learning_starts'?)"
    assert nearest("sede", iter(["lr", "seed"])) == " (did you mean 'seed'?)"
    assert nearest("zzz", ["seed"]) == nearest("seed", []) == nearest("", ["seed"]) == ""


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 1e-3),
        ("012", 12),
        ("0o17", 15),
        ("-.inf", -math.inf),
        ("on", "on"),
        ("true", True),
        ("~", None),
        ("", None),
        ("1:30", "1:30"),
        ("[1, b, {c: 2.0}]", [1, "b", {"c": 2.0}]),
    ],
)
def test_values_are_those_of_yaml_1_2(text: str, value: Any) -> None:
    assert repr(yaml_value(text, "here")) == repr(value)  # repr tells 1 from 1.0 and from True


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("!!bool x", "KeyError"),
        ("!!float x", "ValueError"),
        ("9" * 5000, "ValueError"),
        ("[1", "ParserError"),
        ("[" * 3000 + "]" * 3000, "RecursionError"),
        ("a: 1\na: 2", "DuplicateKeyError"),
        ("*x", "ComposerError"),
        ("1\n---\n2", "ComposerError"),
        ("\0", "ReaderError"),
        ("!!python/object/apply:os.system ['true']", "ConstructorError"),
    ],
)
def test_everything_else_is_refused_in_one_line_that_says_where(text: str, why: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        yaml_value(text, "-p seed")
    told = str(refusal.value)
    assert told.startswith(f"-p seed: not readable as YAML: {why}: ")
    assert "\n" not in told
    assert len(told) < 400
