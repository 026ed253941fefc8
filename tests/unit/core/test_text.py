"""Names that are nearly right are recognised; text is a plain value or a refusal that says where and why."""

import math
from typing import Any

import pytest

from uavlab.core.errors import ConfigError
from uavlab.core.text import check_threads, one_line, quote, require_known, suggest, yaml_lines, yaml_value


def test_suggestions() -> None:
    assert suggest("lerning_starts", ["learning_starts", "seed"]) == " (did you mean 'learning_starts'?)"
    assert suggest("sede", iter(["lr", "seed"])) == " (did you mean 'seed'?)"
    assert suggest("zzz", ["seed"]) == suggest("seed", []) == suggest("", ["seed"]) == ""
    assert suggest("learing_rate", ["learning_starts", "lr"]) == " (did you mean 'learning_starts'?)"
    assert suggest("learing_rate", ["learning_starts", "lr"], {"learning_rate": "lr"}) == " (did you mean 'lr'?)"


@pytest.mark.parametrize("name", ["sede", ["seed"], None])
def test_an_unknown_name_is_refused_with_all_that_are_known(name: Any) -> None:
    require_known("setting", "seed", iter(["lr", "seed"]))
    with pytest.raises(ConfigError) as refusal:
        require_known("setting", name, iter(["lr", "seed"]), "here: ")
    hint = "" if name is None else " (did you mean 'seed'?)"
    assert str(refusal.value) == f"here: unknown setting {name!r}{hint}. Known settings: lr, seed."


def test_values_are_shown_briefly() -> None:
    hollow: list[Any] = []
    hollow.append(hollow)
    bomb: list[Any] = [1] * 9
    for _ in range(40):
        bomb = [bomb] * 9
    for value in ("x" * 10**6, bomb, hollow, 10**6000, [10**6000], b"\0" * 10**6):
        assert len(quote(value)) <= 80
    assert quote(10**6000) == "an enormous int"
    assert quote("a\n\x1b[2J") == r"'a\n\x1b[2J'"


def test_one_line_moves_no_cursor() -> None:
    assert one_line("a\tb\r\n\x1b[31mred\x9b\u202e") == r"a\tb\r\n\x1b[31mred\x9b\u202e"
    assert one_line("straße, 'Δ' <script>") == "straße, 'Δ' <script>"


@pytest.mark.parametrize("given", ["1", " 4 ", "08", "4,2", "9999"])
def test_threads_that_openmp_reads(given: str) -> None:
    check_threads({"OMP_NUM_THREADS": given})
    check_threads({})


@pytest.mark.parametrize("given", ["0", "abc", "", "-1", "1.5", "00", "4,", "4,0", "10000", "٣"])
def test_threads_that_openmp_would_pass_over(given: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        check_threads({"OMP_NUM_THREADS": given})
    assert str(refusal.value) == (
        f"OMP_NUM_THREADS={given!r}: expected a whole number from 1 to 9999; set or unset it."
    )


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 1e-3),
        ("0o17", 15),
        ("0", 0),
        ("0.5", 0.5),
        ("'0123'", "0123"),
        ("-.inf", -math.inf),
        ("on", "on"),
        ("true", True),
        ("~", None),
        ("", None),
        ("1:30", "1:30"),
        ("[1, b, {c: 2.0}]", [1, "b", {"c": 2.0}]),
        ("[" * 32 + "]" * 32, eval("[" * 32 + "]" * 32)),
        ("'" + "x" * 1001 + "'", "x" * 1001),
        ("x" * 1000, "x" * 1000),
    ],
)
def test_values_are_those_of_yaml_1_2(text: str, value: Any) -> None:
    assert repr(yaml_value(text, "here")) == repr(value)  # repr tells 1 from 1.0 and from True


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("!!bool x", "tag '!!bool'; expected plain values without tags"),
        ("! x", "tag '!'; expected plain values without tags"),
        ("!!python/object/apply:os.system ['true']", "tag '!!python/object/apply:os.system'; expected plain values*"),
        ("012", "'012' may be decimal or octal; leave out the leading 0, or write 0o"),
        ("-0_1", "'-0_1' may be decimal or octal; leave out the leading 0, or write 0o"),
        ("9" * 5000, "a value of 5,000 characters; expected at most 1,000 without quotes"),
        ("[" * 33 + "]" * 33, "nested deeper than 32; expected plain values"),
        ("[" * 40_000, "nested deeper than 32; expected plain values"),
        ("- " * 40_000, "nested deeper than 32; expected plain values"),
        ("[&x 1, *x]", "alias *x; write its value out"),
        ("[1", "not readable as YAML: while parsing a flow sequence expected ',' or ']', but got '<stream end>'"),
        ("{a: 1, a: 2}", 'not readable as YAML: while constructing a mapping found duplicate key "a" with value*'),
        ("1\n---\n2", "not readable as YAML: expected a single document in the stream but found another document"),
        ("\ta", "not readable as YAML: while scanning for the next token found character '\\t' that cannot start*"),
        ("\0", "not readable as YAML: ReaderError: unacceptable character #x0000: special characters are not*"),
        ("2020-02-32", "not readable as YAML: ValueError: day is out of range for month"),
    ],
)
def test_everything_else_is_refused_in_one_line_that_says_where(text: str, why: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        yaml_value(text, "-p seed")
    message = str(refusal.value)
    assert message.startswith(f"-p seed: {why[:-1]}") if why.endswith("*") else message == f"-p seed: {why}."
    assert "\n" not in message
    assert len(message) < 400


def test_a_file_is_refused_by_line() -> None:
    for text, line in (("a: 1\nb: 07", 2), ("a: 1\n\na: 2\n", 3), ("a: 1\nb: [\n", 3), ("a: !!int x", 1)):
        with pytest.raises(ConfigError, match=f"^mine.yaml:{line}: "):
            yaml_value(text, "mine.yaml", lines=True)


def test_lines_of_names() -> None:
    assert yaml_lines("# a run\r\nlr: 1\r\nbatch:\r\n  2\r\n'seed': 3") == {"lr": 2, "batch": 3, "seed": 5}


def test_keys_of_inner_mappings_have_lines_too() -> None:
    text = "a:\n  b: 1\n  c: {d: [{e: 2}],\n    f: 3}\nb: 4\n2: {}\n"
    assert yaml_lines(text) == {"a": 1, "b": 5, "2": 6}
    assert yaml_lines(text, nested=True) == {**yaml_lines(text), "a.b": 2, "a.c": 3, "a.c.d": 3, "a.c.f": 4}
