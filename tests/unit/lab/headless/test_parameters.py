import math
from pathlib import Path

import pytest

from tests.support.tiny_notebook import PARAMETERS, Write
from uavlab.core.errors import ConfigError, FileError
from uavlab_lab.headless.parameters import declared_parameters, parameters, read_parameters


def injected(**values: object) -> dict[str, object]:
    """Build the namespace that a kernel holds after papermill set these values."""
    source = "# Parameters\n" + "".join(f"{name} = {value!r}\n" for name, value in values.items())
    return {"In": ["", source], **values}


class TestParameters:
    def test_gathers_values_and_makes_floats_of_ints(self) -> None:
        p = parameters({"seed": 3, "lr": 1, "fast": True}, seed=(int, 0, 3), lr=(float, 0, 1), fast=bool)
        assert vars(p) == {"seed": 3, "lr": 1.0, "fast": True}
        assert type(p.lr) is float

    @pytest.mark.parametrize(
        ("spec", "value"),
        [
            (int, True),
            (int, 2.5),
            (bool, "perhaps"),
            (list, "2, 4"),
            (list, "["),
            (str, 2.0),
            (int, "2"),
            (bool, 1),
            (float, math.nan),
            (float, math.inf),
            (float, 10**400),
            (float, False),
            ((int, 0, 3), -1),
            ((int, 0, 3), 4),
            ((float, 0, 1), math.nan),
            (("auto", "cpu"), "tpu"),
            ((1, 2), True),
            (str, None),
        ],
    )
    def test_refuses_what_does_not_fit(self, spec: object, value: object) -> None:
        with pytest.raises(ConfigError, match=r"this notebook: x = .*, expected .*\. Known: x\."):
            parameters({"x": value}, x=spec)

    @pytest.mark.parametrize(
        ("kind", "text", "expected"),
        [(list, "[2, 4]", [2, 4]), (bool, "true", True), (int, "1e3", 1000), (float, "2", 2.0), (str, "true", "true")],
    )
    def test_takes_what_papermill_makes_of_its_own_option(self, kind: type, text: str, expected: object) -> None:
        from papermill.cli import _resolve_type

        value = vars(parameters(injected(x=_resolve_type(text)), x=kind))["x"]
        assert (value, type(value)) == (expected, type(expected))

    def test_tells_all_problems_at_once(self) -> None:
        with pytest.raises(ConfigError) as caught:
            parameters(injected(sede=1, followers=900), seed=int, followers=(int, 1, 16), device=("auto", "cpu"))
        assert str(caught.value) == (
            "Parameters of this notebook: unknown parameter 'sede' (did you mean 'seed'?); 'seed' is missing from the "
            "parameters cell; followers = 900, expected int in [1, 16]; 'device' is missing from the parameters cell. "
            "Known: seed, followers, device."
        )

    def test_seed_device_and_threads_need_no_declaration(self) -> None:
        assert vars(parameters({"seed": 3, "threads": 2, "fast": True}, fast=bool)) == {
            "seed": 3,
            "threads": 2,
            "fast": True,
        }
        with pytest.raises(ConfigError, match=r"seed = -1, expected int in \[0, 2147483648\].* Known: seed, fast\."):
            parameters({"seed": -1, "fast": True}, fast=bool)
        assert parameters({"seed": -1}, seed=(int, -1, 1)).seed == -1  # a declaration of the notebook wins

    def test_only_the_last_injected_cell_counts(self) -> None:
        namespace = injected(seed=1) | {"In": ["# Parameters\nsede = 1\n", "# Parameters\nseed = 1\n", "sede = 2"]}
        assert parameters(namespace, seed=int).seed == 1

    def test_a_cell_that_only_begins_alike_is_no_injected_cell(self) -> None:
        assert parameters({"In": ["# Parameters\n%load_ext x\nother = 1"], "seed": 1}, seed=int).seed == 1


class TestDeclared:
    def test_reads_annotations_and_defaults(self, write: Write) -> None:
        path = write("import os", ('seed: int = 0\nlr = 1e-3\nsizes: "list" = []', "parameters"))
        with pytest.raises(ConfigError, match="cannot be read"):  # a quoted annotation is no plain type
            declared_parameters(path)
        path = write("import os", ("seed: int = 0  # seed\n\nlr = 1e-3\nsizes: list = []", "parameters"))
        assert declared_parameters(path) == {"seed": int, "lr": float, "sizes": list}

    @pytest.mark.parametrize("line", ["import os", "a = b = 1", "a = 2 ** 31", "a: Tensor = 1", "a: int", "a ="])
    def test_refuses_anything_but_literals(self, write: Write, line: str) -> None:
        with pytest.raises(ConfigError, match=r"tiny\.ipynb: the parameters cell cannot be read"):
            declared_parameters(write((line, "parameters")))

    @pytest.mark.parametrize("text", [None, "", "{", "[]", '{"cells": 1}', "\0"])
    def test_refuses_what_is_no_notebook(self, tmp_path: Path, text: str | None) -> None:
        if text is not None:
            (tmp_path / "x.ipynb").write_text(text)
        with pytest.raises(FileError, match="is not a readable notebook"):
            declared_parameters(tmp_path / "x.ipynb")

    @pytest.mark.parametrize("number", [2, 3])
    def test_refuses_the_formats_of_before_2015(self, tmp_path: Path, number: int) -> None:
        path = tmp_path / "x.ipynb"
        path.write_text(f'{{"nbformat": {number}, "nbformat_minor": 0, "metadata": {{}}, "worksheets": []}}')
        with pytest.raises(FileError) as caught:
            declared_parameters(path)
        assert str(caught.value) == (
            f"{path} has notebook format {number}, not 4; convert it: `(set -C; jupyter nbconvert --to notebook "
            f"--stdout {path} > {path.with_suffix('')}.v4.ipynb)`."
        )

    @pytest.mark.parametrize(
        ("cell", "problem"),
        [
            ('{"cell_type": "code", "metadata": {"tags": "parameters"}, "source": "a = 1"', "is not of type 'array'"),
            ('{"cell_type": "code", "metadata": {}, "source": 1', "1 is not valid under any of the given schemas"),
        ],
    )
    def test_refuses_a_damaged_cell(self, tmp_path: Path, cell: str, problem: str) -> None:
        cell += ', "id": "a", "outputs": [], "execution_count": null}'
        (tmp_path / "x.ipynb").write_text(
            f'{{"nbformat": 4, "nbformat_minor": 5, "metadata": {{}}, "cells": [{cell}]}}'
        )
        with pytest.raises(FileError, match=rf"x\.ipynb is not a sound notebook: .*{problem}; open and save it"):
            declared_parameters(tmp_path / "x.ipynb")


class TestReadParameters:
    def test_yaml_is_version_1_2_and_pairs_win(self, write: Write, tmp_path: Path) -> None:
        (tmp_path / "p.yaml").write_text("lr: 1e-3\nseed: 12\nfast: true\ndevice: yes\n")
        got = read_parameters(write(PARAMETERS), [("seed", "7"), ("sizes", "[1, 2]")], tmp_path / "p.yaml")
        assert got == {"lr": 1e-3, "seed": 7, "fast": True, "device": "yes", "sizes": [1, 2]}
        assert type(got["lr"]) is float

    def test_text_for_a_str_stays_text(self, write: Write) -> None:
        pairs = [("device", "1e-3"), ("lr", "1e-3"), ("sizes", "[1"), ("seed", "!!bool x"), ("unknown", "3")]
        got = read_parameters(write(PARAMETERS), pairs)
        assert got == {"device": "1e-3", "lr": 1e-3, "sizes": "[1", "seed": "!!bool x", "unknown": 3}

    @pytest.mark.parametrize(
        "text", ["- 1", "a: [", "a: 1\na: 2", "!!python/object/apply:os.system ['true']", "[" * 3000, "a: !!bool x", ""]
    )
    def test_refuses_bad_files(self, write: Write, tmp_path: Path, text: str) -> None:
        (tmp_path / "p.yaml").write_text(text)
        with pytest.raises(ConfigError, match=r"p\.yaml"):
            read_parameters(write(PARAMETERS), [], tmp_path / "p.yaml")

    def test_names_a_missing_file(self, write: Write, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match=r"missing\.yaml: not readable"):
            read_parameters(write(PARAMETERS), [], tmp_path / "missing.yaml")
