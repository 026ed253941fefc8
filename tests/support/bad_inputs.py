"""The catalogue of bad input and odd machines: commands, files, and the line that each must end with.

``…`` in a message stands for a figure or a path that differs from machine to machine; everything else is pinned.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from tests.support.fixtures_config import TINY
from uavlab.benchmarks import suites

P = "leader_follower"
SETTINGS = " " + " ".join(f"--set {key}={value}" for key, value in TINY.items())
BOMB = "a: &a [1, 1]\n" + "".join(f"{b}: &{b} [{f'*{a}, ' * 9}]\n" for a, b in pairwise("abcdefgh"))
Make = Callable[[Path], object]


@dataclass(frozen=True)
class Row:
    """One line of the catalogue.

    Attributes:
        id: The kind of input, and a word that distinguishes several of a kind.
        command: What follows ``uavlab``; words are separated as a shell does, a list is taken as it is.
        message: The text on stderr, without the kind of error; empty for what is accepted.
        code: The exit code.
        files: Contents of files in the working folder, or functions that create something there.
        run: A change to a complete run, copied to ``run``, before the command.
        out: A pattern that stdout holds.
        env: Environment variables.
        alone: Whether the command needs a process of its own.
    """

    id: str
    command: str | list[str]
    message: str = ""
    code: int = 2
    files: Mapping[str, str | bytes | Make] = field(default_factory=dict)
    run: Make | None = None
    out: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    alone: bool = False


def setting(id: str, texts: str, *problems: str, more: str = "") -> Row:
    """Return a row with settings on the command line that are refused."""
    words = [word for text in texts.split(" | ") for word in ("--set", text)]
    return Row(id, ["train", P, *words], f"{P}: {'; '.join(problems)}.{more}")


def file(id: str, content: str | bytes | Make, message: str) -> Row:
    """Return a row with a settings file that is refused."""
    return Row(id, f"train {P} --config mine.yaml", message, files={"mine.yaml": content})


def accepted(id: str, content: str | bytes, out: str) -> Row:
    """Return a row with a settings file that is accepted."""
    return Row(id, f"train {P} --config mine.yaml --dry-run", code=0, files={"mine.yaml": content}, out=out)


def whole(name: str, got: str) -> str:
    return f"{name}: input should be a valid integer, got {got} from --set"


def least(name: str, low: str, got: str) -> str:
    return f"{name}: input should be greater than or equal to {low}, got {got} from --set"


def most(name: str, high: str, got: str) -> str:
    return f"{name}: input should be less than or equal to {high}, got {got} from --set"


GIVEN = "Settings are given by --set NAME=VALUE. See `uavlab train --help`."
MORE = f" All settings: uavlab settings {P}."
MISSPELT = f"{P}: unknown setting 'learing_rate' from mine.yaml:2 (did you mean 'lr'?).{MORE}"
NOT_YAML = "mine.yaml:{}: not readable as YAML: {}."
BAD_NAME = "--name {}: expected 1 to 80 letters, digits, '.', '_', '-', starting with none of '.-'."

CONFIGURATION = (
    file("cfg-1", "seed: 1\nlearing_rate: 1e-3\n", MISSPELT),
    file(
        "cfg-1 several",
        "hiden: 9\nseed: -1\ncapacity: 8\n",
        f"{P}: unknown setting 'hiden' from mine.yaml:1 (did you mean 'hidden'?); seed: input should be greater than "
        "or equal to 0, got -1 from mine.yaml:2; batch 128 > capacity 8: lower batch or raise capacity (capacity from "
        "mine.yaml:3); worlds 64 > capacity 8: one step would overwrite itself (capacity from mine.yaml:3); "
        "learning_starts 2048 > capacity 8: those rows would be overwritten before the first update (capacity from "
        f"mine.yaml:3).{MORE}",
    ),
    accepted("cfg-2", "updates: 7\nlr: 1e-3\ngamma: 9.9e-1\n", r"updates +7\n"),
    file(
        "cfg-3",
        "seed: 3\nlr: 0.1\nseed: 9\n",
        NOT_YAML.format(
            3, 'while constructing a mapping found duplicate key "seed" with value "9" (original value: "3")'
        ),
    ),
    file("cfg-4", "seed: 0123", "mine.yaml:1: '0123' may be decimal or octal; leave out the leading 0, or write 0o."),
    *(
        setting(f"cfg-5 {word}", f"share={word}", f"share: input should be a valid boolean, got '{word}' from --set")
        for word in ("on", "off", "yes", "no")
    ),
    setting("cfg-6 nan", "lr=.nan", "lr: input should be a finite number, got nan from --set"),
    setting("cfg-6 inf", "lr=.inf", "lr: input should be a finite number, got inf from --set"),
    setting("cfg-6 word", "lr=nan", "lr: input should be a valid number, got 'nan' from --set"),
    setting("cfg-7", "minutes=12:30:45", "minutes: input should be a valid number, got '12:30:45' from --set"),
    setting("cfg-7 date", "seed=2020-01-01", whole("seed", "datetime.date(2020, 1, 1)")),
    setting("cfg-8", "gamma=1.5", most("gamma", "1", "1.5")),
    setting("cfg-8 low", "gamma=-0.1", least("gamma", "0", "-0.1")),
    setting("cfg-9", "tau=0", "tau: input should be greater than 0, got 0 from --set"),
    setting("cfg-10", "batch=0", least("batch", "1", "0")),
    setting("cfg-10 low", "batch=-4", least("batch", "1", "-4")),
    setting("cfg-10 part", "batch=2.5", whole("batch", "2.5")),
    setting("cfg-10 bool", "batch=true", whole("batch", "True")),
    setting("cfg-10 null", "batch=", whole("batch", "None")),
    setting(
        "cfg-11",
        "batch=512 | capacity=256 | learning_starts=256",
        "batch 512 > capacity 256: lower batch or raise capacity (batch from --set, capacity from --set)",
    ),
    setting(
        "cfg-12 replay",
        "learning_starts=300 | capacity=256",
        "learning_starts 300 > capacity 256: those rows would be overwritten before the first update "
        "(learning_starts from --set, capacity from --set)",
    ),
    accepted("cfg-12", "learning_starts: 50000\nupdates: 20\n", r"world_steps_per_run +51280\n"),  # they come before
    accepted("cfg-13", "capacity: 3001\nworlds: 64\n", r"replay_bytes +456152\n"),  # nothing is rounded
    setting("cfg-14", "followers=-1", least("followers", "0", "-1")),
    setting("cfg-14 high", "followers=10000", most("followers", "64", "10000")),
    setting(
        "cfg-14 name", "n_agents=3", "unknown setting 'n_agents' from --set (did you mean 'followers'?)", more=MORE
    ),
    Row(
        "cfg-14 learner",
        f"train {P} --learner masac --set noisy=true",
        f"{P}: unknown setting 'noisy' from --set.{MORE}",
    ),
    setting("cfg-15", "world_steps=0", least("world_steps", "1", "0")),
    setting("cfg-15 log", "log_every=0", least("log_every", "1", "0")),
    setting(
        "cfg-22",
        "graph=cycle | world_steps=5",
        "graph cycle refills worlds between cycles: world_steps 5 does not divide 32 (graph from --set, world_steps "
        "from --set)",
    ),
    Row(
        "cfg-22 toggle",
        f"train {P} --toggle updat=loop",
        "unknown toggle 'updat' from --toggle (did you mean 'update'?). All toggles: uavlab toggles.",
    ),
    Row(
        "cfg-22 toggles",
        f"train {P} --toggles fast",
        "unknown toggles 'fast'. Known sets: plain, eager, laptop, gpu, max.",
    ),
    setting(
        "cfg-22 end", "updates=", "neither updates nor minutes is set: the run would never end (updates from --set)"
    ),
    *(
        setting(
            f"cfg-23 {it}", f"device={it}", f"device: input should be 'auto', 'cpu' or 'cuda', got '{it}' from --set"
        )
        for it in ("cuda:7", "gpu", "tpu")
    ),
    Row(
        "cfg-23",
        f"train {P} --device cuda",
        "device: cuda requested, but torch.cuda.is_available() is False (torch …); use device=auto or cpu, and see "
        "`uavlab doctor`.",
    ),
    setting("cfg-25", "keep=0", least("keep", "1", "0")),
    accepted(
        "cfg-26", "checkpoint_every: 999\nevaluate_every: 999\nupdates: 5\n", r"updates +5\n"
    ),  # the end saves, scores
    *(
        Row(f"cfg-27 {n}", ["train", P, f"--name={name}"], BAD_NAME.format(repr(name)))
        for n, name in enumerate(
            ("", ".", "..", "../../etc/x", "a/b", "/a", "-a", ".a", "a b", "ä", "a\\b", "---", "a\0b", "\x1b[2J", "<b>")
        )
    ),
    Row("cfg-27 long", f"train {P} --name {'x' * 81}", BAD_NAME.format("'x…x'")),
    file(
        "cfg-28",
        "lr: 1\n\n\nx: !!python/object/apply:os.system ['touch made']\n",
        "mine.yaml:4: tag '!!python/object/apply:os.system'; expected plain values without tags.",
    ),
    file("cfg-29", "lr: " + "[" * 3000 + "]" * 3000, "mine.yaml:1: nested deeper than 32; expected plain values."),
    file("cfg-30", BOMB, "mine.yaml:2: alias *a; write its value out."),
    file("cfg-31 large", b"#" * 50_001, "mine.yaml: not readable: larger than 50,000 bytes."),
    file(
        "cfg-31 huge",
        lambda path: (path.touch(), os.truncate(path, 200_000_000)),
        "mine.yaml: not readable: larger than 50,000 bytes.",
    ),
    file("cfg-31 binary", b"\x7fELF\x02\x80", "mine.yaml: not readable as UTF-8: invalid start byte at byte 5."),
    file(
        "cfg-31 utf-16", "seed: 1".encode("utf-16"), "mine.yaml: not readable as UTF-8: invalid start byte at byte 0."
    ),
    file(
        "cfg-31 control",
        "seed: 1\nlr: 1e-3  # \x07\n",
        "mine.yaml: not readable as YAML: ReaderError: unacceptable character #x0007: special characters are not "
        'allowed in "<unicode string>", position 20.',
    ),
    accepted("cfg-31 bom, crlf", b"\xef\xbb\xbfupdates: 7\r\nseed: 1\r\n", r"updates +7\n"),
    file(
        "cfg-31 tab",
        "train:\n\tlr: 1\n",
        NOT_YAML.format(2, r"while scanning for the next token found character '\t' that cannot start any token"),
    ),
    file("cfg-31 missing", lambda path: path, "mine.yaml: not readable: No such file or directory."),
    file("cfg-31 folder", Path.mkdir, "mine.yaml: not readable: not a regular file."),
    file("cfg-31 pipe", os.mkfifo, "mine.yaml: not readable: not a regular file."),
    file("cfg-32 empty", "", "mine.yaml: expected lines `name: value`, got nothing."),
    file("cfg-32 null", "null", "mine.yaml: expected lines `name: value`, got nothing."),
    file("cfg-32 list", "- lr\n- 1\n", "mine.yaml: expected lines `name: value`, got a list."),
    file("cfg-32 text", "lr", "mine.yaml: expected lines `name: value`, got a str."),
    file("cfg-32 number", "1: 2", "mine.yaml: expected lines `name: value`, got the name 1."),
    setting(
        "cfg-35 wandb",
        "wandb=a/b",
        "wandb 'a/b': expected the name of a project, 1 to 128 characters, none of / \\ # ? % : (wandb from --set)",
    ),
    setting(
        "cfg-35 mlflow",
        "mlflow=''",
        "mlflow '': expected a folder or an address, 1 to 1,000 characters (mlflow from --set)",
    ),
    setting("cfg-35 kind", "wandb=7", "wandb: input should be a valid string, got 7 from --set"),
    setting(
        "cfg-36",
        "pause_ms=3",
        "unknown setting 'pause_ms' from --set",
        more=" All settings: uavlab settings leader_follower.",
    ),
    setting("cfg-33", "seed=9999999999999999999999", most("seed", "2147483648", "9999999999999999999999")),
    setting("cfg-33 low", "seed=-1", least("seed", "0", "-1")),
    setting("cfg-33 hex", f"seed=0x{'f' * 900}", most("seed", "2147483648", "…")),
    setting("cfg-34", "hidden=[256, 256]", whole("hidden", "[256, 256]")),
    setting("cfg-34 map", "hidden={a: 1}", whole("hidden", "{'a': 1}")),
    Row(
        "cfg-35",
        "resume run --set followers=3 --set capacity=64",
        "run: cannot go on with capacity 32 -> 64, followers 1 -> 3; start a new run for that. A resumed run may …",
        run=lambda run: None,
    ),
)

COMMAND_LINE = (
    Row("cli-1 command", "trein", "No such command 'trein'. Did you mean 'train'? See `uavlab --help`."),
    Row(
        "cli-1 option",
        f"train {P} --drr-run",
        f"No such option '--drr-run'. (Did you mean one of: '--dry-run', '--runs'?) {GIVEN}",
    ),
    Row("cli-1 argument", f"train {P} two", f"Got unexpected extra argument (two). {GIVEN}"),
    Row("cli-1 none", "train", "Missing argument 'PRESET'. `uavlab presets` lists them."),
    Row("cli-1 order", f"{P} train", f"'{P}' is a preset, expected a command, such as `uavlab train {P}`."),
    Row("cli-1 run", "resume", "Missing argument 'RUN'. Runs here: run.", run=lambda run: None),
    Row(
        "cli-1 choice",
        "bench foo",
        f"Invalid value for 'SUITE': 'foo' is not one of {', '.join(map(repr, suites()))}.",
    ),
    Row("cli-1 flag", f"train {P} --monitor=yes", "Option '--monitor' does not take a value."),
    Row("cli-1 limit", f"profile {P} --limit -1", "Invalid value for '--limit': -1.0 is not in the range x>=0."),
    setting("cli-1 monitor", "monitor=yes", "monitor: input should be a valid boolean, got 'yes' from --set"),
    Row("cli-1 presets", "bench monitor --presets nope", "unknown preset 'nope'. Known presets: …."),
    Row(
        "cli-1 sets",
        "bench learning --sets laptpo",
        "unknown toggles 'laptpo' (did you mean 'laptop'?). Known sets: plain, eager, laptop, gpu, max.",
    ),
    Row(
        "cli-1 goal",
        "bench learning --goal 2",
        "Invalid value for '--goal': 2.0 is not in the range 0.01<=x<=1.0.",
    ),
    Row(
        "cli-7 study",
        "bench curriculum --folder mine/runs",
        "mine/runs/…: cannot be written (mine is a file); choose another path.",
        5,
        {"mine": ""},
    ),
    Row("cli-1 seed", f"train {P} --seed x", "Invalid value for '--seed': 'x' is not a valid integer."),
    Row(
        "cli-1 episodes",
        "evaluate a --episodes 0",
        "Invalid value for '--episodes': 0 is not in the range 1<=x<=100000.",
    ),
    Row(
        "cli-2 path", f"train {P} --set a.b=1", f"{P}: unknown setting 'a.b' from --set.{MORE}"
    ),  # settings have no paths
    Row("cli-2 sign", f"train {P} --set hidden", "--set 'hidden': expected key=value."),
    Row(
        "cli-2 value",
        ["train", P, "--set", "lr=[1"],
        "--set 'lr=[1': not readable as YAML: while parsing a flow sequence expected ',' or ']', but got …",
    ),
    Row(
        "cli-2 origins",
        f"train {P} --config mine.yaml --set tau=2 --seed -1 --minutes nan",
        f"{P}: seed: input should be greater than or equal to 0, got -1 from --seed; minutes: input should be a finite "
        "number, got nan from --minutes; tau: input should be less than or equal to 1, got 2 from --set; lr: input "
        "should be less than or equal to 1, got 3 from mine.yaml:1.",
        files={"mine.yaml": "lr: 3\ntau: 0.1\n"},
    ),
    Row(
        "cli-3",
        f"train {P} --name a --out b",
        "--name and --out both say where the run is kept; give one of them.",
    ),
    Row("cli-5 long", ["train", "x" * 10**6], "unknown preset 'xxxxxxxxxxxx...xxxxxxxxxxxxx'. Known presets: …."),
    Row(
        "cli-5 set", ["train", P, "--set", f"seed={'x' * 10**6}"], "--set 'seed=xxxxxxx...xxxxxxxxxxxxx': a value of …."
    ),
    Row(
        "cli-5 out",
        ["train", P, "--out", "a\udcff"],
        r"out 'a\udcff': expected a name of characters that can be written.",
    ),
    Row("cli-5 bytes", ["train", "\udcff\x1b[2J"], r"unknown preset '\udcff\x1b[2J'. Known presets: …."),
    Row("env-6", "train leader_folower", f"unknown preset 'leader_folower' (did you mean '{P}'?). Known presets: …."),
    Row(
        "env-6 settings",
        "settings leader_follow",
        f"unknown preset 'leader_follow' (did you mean '{P}'?). Known presets: ….",
    ),
    Row("env-6 check", "check runs/mine", "unknown preset 'runs/mine'. Known presets: …."),
    setting("env-8 dt", "dt=0", "dt: input should be greater than 0, got 0 from --set"),
    setting("env-8 speed", "obstacle_speed=-1", least("obstacle_speed", "0", "-1")),
    setting("env-8 horizon", "horizon=0", least("horizon", "1", "0")),
    setting("env-8 test", "eval_horizon=0", least("eval_horizon", "1", "0")),
    setting(
        "env-15",
        "sight=3",
        "sight 3 > obstacles 1: an agent cannot see more than there are (sight from --set)",
    ),
    Row(
        "env-15 test",
        f"check {P} --set sight=2 --set obstacles=2 --set eval_obstacles=1",
        f"{P}: sight 2 > eval_obstacles 1: the policy would look for more than there are (sight from --set, "
        "eval_obstacles from --set).",
    ),
    Row(
        "cli-7 used",
        f"train {P} --out mine",
        "mine: not empty; choose a new folder.",
        files={"mine": Path.mkdir, "mine/thesis.tex": "all of it"},
    ),
    Row(
        "cli-7 file",
        f"train {P} --out mine/run{SETTINGS}",
        "mine/run: cannot be written (…); choose another folder.",
        5,
        {"mine": ""},
    ),
    Row(
        "cli-7 long",
        f"train {P} --out {'x' * 300}",
        "OSError: [Errno 36] File name too long: …; free some memory or space, or check paths.",
        5,
    ),
    Row(
        "mem-1 replay",
        f"train {P} --set capacity=1000000000 --set runs=16",
        "replay: 2,432,000,000,000 bytes, … are free on cpu; lower capacity or runs.",
        5,
    ),
    Row(
        "mem-1 learner",
        f"train {P} --set hidden=4096 --set batch=1000000 --set capacity=1000000 --set runs=256",
        "learner: …, … are free on cpu; lower hidden, batch or runs.",
        5,
    ),
)

DEVICE = "device: cuda requested, but torch.cuda.is_available() is False (torch …, CUDA_VISIBLE_DEVICES='{}'); use …."
THREADS = "OMP_NUM_THREADS='{}': expected a whole number from 1 to 9999; set or unset it."
ODD = {"HOME": "", "TMPDIR": "/nowhere", "LC_ALL": "de_DE", "CUDA_VISIBLE_DEVICES": "7", "PYTHONOPTIMIZE": "1"}

VARIABLES = (
    *(
        Row(f"var-1 {it}", f"train {P} --device cuda", DEVICE.format(it), env={"CUDA_VISIBLE_DEVICES": it})
        for it in ("", "-1", "7")
    ),
    *(Row(f"var-2 {it}", "presets", THREADS.format(it), env={"OMP_NUM_THREADS": it}) for it in ("0", "", "1.5")),
    Row("var-2", "presets", THREADS.format("abc"), env={"OMP_NUM_THREADS": "abc"}, alone=True),
    Row(
        "var-6",
        f"train {P} --config mine.yaml",
        MISSPELT,
        files={"mine.yaml": "\nlearing_rate: 1"},
        env=ODD,
        alone=True,
    ),
)

PLACE = {"WORLD_SIZE": "2", "RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
WHOLE = (
    "ranks: {} is '{}'; expected a whole number from {} to {}, as torchrun sets it: start by "
    "`torchrun --nproc-per-node=N -m uavlab train PRESET`."
)
NO_GPU = "rank_backend: nccl needs a GPU for each rank, got 0 for 1 here; use auto or gloo."

RANKS = (
    Row(
        "rank-1",
        f"train {P}",
        "ranks: WORLD_SIZE is 2, but RANK, MASTER_ADDR, MASTER_PORT is not set; start by "
        "`torchrun --nproc-per-node=N -m uavlab train PRESET`, or unset WORLD_SIZE.",
        env={"WORLD_SIZE": "2", "RANK": "", "MASTER_ADDR": "", "MASTER_PORT": ""},
    ),
    Row("rank-2 size", f"train {P}", WHOLE.format("WORLD_SIZE", "two", 1, 65536), env={"WORLD_SIZE": "two"}),
    Row("rank-2 number", f"train {P}", WHOLE.format("RANK", "2", 0, 1), env={**PLACE, "RANK": "2"}),
    Row("rank-2 port", f"train {P}", WHOLE.format("MASTER_PORT", "0", 1, 65535), env={**PLACE, "MASTER_PORT": "0"}),
    *(
        Row(f"rank-2 {word}", f"train {P}", WHOLE.format(name, got, *limits), env={**PLACE, name: got})
        for word, name, got, limits in (
            ("local number", "LOCAL_RANK", "two", (0, 65535)),
            ("local size", "LOCAL_WORLD_SIZE", "", (1, 65536)),
        )
    ),
    Row("rank-3", f"train {P} --set rank_backend=nccl{SETTINGS}", NO_GPU, env=PLACE),
    setting(
        "rank-4", "rank_backend=mpi", "rank_backend: input should be 'auto', 'gloo' or 'nccl', got 'mpi' from --set"
    ),
    setting("rank-5", "rank_timeout_s=0.5", least("rank_timeout_s", "1", "0.5")),
    setting(
        "rank-6", "lr_scale=square", "lr_scale: input should be 'none', 'linear' or 'sqrt', got 'square' from --set"
    ),
    setting("rank-7", "warmup=-1", least("warmup", "0", "-1")),
    *(
        Row(
            f"rank-8 {got}",
            f"bench ranks --ranks 1 --ranks {got}",
            f"Invalid value for '--ranks': {got} is not in the range 1<=x<=64.",
        )
        for got in (0, 65)
    ),
)

ROWS = (*CONFIGURATION, *COMMAND_LINE, *VARIABLES, *RANKS)
