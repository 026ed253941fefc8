"""Nothing from a run's folder reaches a terminal raw, and forged values end in a refusal, never in a traceback."""

import ast
import inspect
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import torch

from tests.support.cli_runner import Result, uavlab
from tests.support.tampered_runs import checkpoint_in, edit_manifest, state
from uavlab import cli
from uavlab.cli import base
from uavlab.core.errors import UavlabError
from uavlab.experiment.resume import META
from uavlab.experiment.run import Run

EVIL = "\x1b]0;owned\x07\x1b[2J\x7f\x9b31m\u202e\r"
COMMANDS = {
    "resume": "resume run",
    "evaluate": "evaluate run --episodes 1 --json",
    "fly": "fly run --json",
    "cross-play": "cross-play run --episodes 1 --json",
    "transfer": "transfer run --sizes 1,2 --episodes 1 --json",
    "report": "report run --episodes 1 --json",
    "export": "export run copy --json",
    "predict": "flights predict run run/config.json",
}


@pytest.fixture
def run(one_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return shutil.copytree(one_checkpoint, tmp_path / "run")


def poisoned(value: Any) -> Any:
    """Return a JSON value with something evil after each of its texts."""
    if isinstance(value, dict):
        return {name: poisoned(each) for name, each in value.items()}
    if isinstance(value, list):
        return [poisoned(each) for each in value]
    return value + EVIL if isinstance(value, str) else value


def poison_state(run: Path) -> None:
    """Poison every text that a command may read and go on: reasons, machine, versions, status and rows."""

    def change(body: dict[str, Any]) -> None:
        body["meta"]["lifted"] = [EVIL]
        body["meta"].update({name: poisoned(body["meta"][name]) for name in ("machine", "rows")})
        body["versions"] = poisoned(body["versions"])

    edit_manifest(change)(run)
    (run / "run.json").write_text(json.dumps(poisoned(json.loads((run / "run.json").read_text()))))
    (run / "metrics.jsonl").write_text(json.dumps({"update": 1, "seconds": EVIL}) + f"\n{EVIL}\n")


def poison_device(run: Path) -> None:
    edit_manifest(lambda body: body["meta"].update(device=EVIL))(run)


def poison_names(run: Path) -> None:
    """Poison names of settings and of tensors, and the environment."""
    stored = json.loads((run / "config.json").read_text())
    stored["values"][EVIL] = EVIL
    (run / "config.json").write_text(json.dumps(poisoned(stored) | {"preset": stored["preset"]}))


def poison_preset(run: Path) -> None:
    (run / "config.json").write_text(json.dumps({"preset": EVIL, "environment": EVIL, "values": {}}))


def poison_tensors(run: Path) -> None:
    state("learner", **{EVIL: torch.clone})(run)


def is_plain(ended: Result) -> bool:
    bar = ended.err.replace("\r", "\n")  # a progress bar begins its line again
    return all(line.isprintable() for line in (ended.out + bar).split("\n"))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("poison", [poison_state, poison_device, poison_names, poison_preset, poison_tensors])
@pytest.mark.parametrize("command", COMMANDS.values())
def test_no_text_of_a_run_reaches_a_terminal_raw(run: Path, poison: Any, command: str) -> None:
    poison(run)
    ended = uavlab(*command.split())
    assert is_plain(ended)
    assert ended.code in (0, 2, 3)
    if (command, poison) == ("resume run", poison_state):
        assert r"not bit for bit repeatable: \x1b]0;owned\x07\x1b[2J\x7f\x9b31m\u202e\r" in ended.out


@pytest.mark.filterwarnings("ignore")
def test_a_command_that_prints_raw_is_caught(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli.runs, "one_line", lambda text: text)
    monkeypatch.setattr(base, "printable", str)
    poison_state(run)
    assert not is_plain(uavlab("resume", "run"))


def leaves(group: click.Group) -> Iterator[click.Command]:
    for command in group.commands.values():
        yield from leaves(command) if isinstance(command, click.Group) else [command]


def test_every_command_on_runs_is_tried() -> None:
    arguments = {
        str(each.name): {p.name for p in each.params if p.param_type_name == "argument"} for each in leaves(cli.cli)
    }
    assert {name for name, given in arguments.items() if given & {"run", "runs"}} == COMMANDS.keys()


def test_commands_print_by_one_function() -> None:
    for module in (cli.flights, cli.measure, cli.notebooks, cli.runs, base):
        calls = [node for node in ast.walk(ast.parse(inspect.getsource(module))) if isinstance(node, ast.Call)]
        texts = [ast.unparse(call.func) for call in calls]
        printing = [text for text in texts if text in ("print", "click.echo", "click.secho", "sys.stdout.write")]
        assert printing == ["click.echo"] * (module is base), module


WRONG: tuple[Any, ...] = (None, 3, "x", [3], [{}], [[]], {"lr": {}}, {"a": None})


def test_forged_types_in_a_manifest_are_refused(run: Path, one_checkpoint: Path) -> None:
    refused = 0
    for name, kind in {**META, "preset": str, "best_updates": list}.items():
        for wrong in WRONG:
            shutil.copy(checkpoint_in(one_checkpoint) / "manifest.json", checkpoint_in(run) / "manifest.json")
            edit_manifest(lambda body, name=name, wrong=wrong: body["meta"].update({name: wrong}))(run)
            if isinstance(wrong, kind) and name in ("machine", "device", "rows", "best_updates"):
                continue
            try:
                Run.resume(run)
            except UavlabError:
                refused += 1
            else:
                assert name == "best_updates", (name, wrong)
    assert refused > 30


@pytest.mark.parametrize(
    ("group", "name", "value"),
    [
        ("counters", "number", torch.tensor(float("nan"))),
        ("counters", "number", torch.tensor([1, 2])),
        ("counters", "rows", torch.zeros(0)),
        ("streams", "salt", torch.tensor([])),
        ("streams", "act.²", torch.zeros(3)),
        ("streams", "act.0", torch.zeros(3)),
        ("best", "score", torch.zeros(3)),
        ("source", "worlds.pos", torch.zeros(3)),
    ],
)
def test_forged_tensors_are_refused(run: Path, group: str, name: str, value: torch.Tensor) -> None:
    state(group, **{name: lambda _: value})(run)
    assert uavlab("resume", "run").code == 3
    assert uavlab("evaluate", "run", "--episodes", "1").code == (3 if group == "best" else 0)
