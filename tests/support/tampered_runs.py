"""Rows of the catalogue on runs that were damaged, edited or forged."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from tests.support.bad_inputs import Make, P, Row
from uavlab.storage import checkpoint


def checkpoint_in(run: Path) -> Path:
    return run / "checkpoints" / "ckpt-000000000008"


def edit_settings(**values: Any) -> Make:
    """Edit a run's settings by hand."""

    def edit(run: Path) -> None:
        stored = json.loads((run / "config.json").read_text())
        stored["values"].update(values)
        (run / "config.json").write_text(json.dumps(stored))

    return edit


def write(name: str, content: str) -> Make:
    """Replace the content of a file of a run."""
    return lambda run: (run / name).write_text(content)


def member(name: str, change: Callable[[bytes], bytes]) -> Make:
    """Damage a file of a run's checkpoint."""
    return lambda run: (path := checkpoint_in(run) / name).write_bytes(change(path.read_bytes()))


def state(group: str, **changes: Callable[[torch.Tensor], torch.Tensor] | None) -> Make:
    """Change or drop tensors of a run's checkpoint, its digests with them; ``more`` is a copy of the first one."""

    def replace(run: Path) -> None:
        saved = checkpoint.load(checkpoint_in(run))
        tensors = saved.groups[group]
        for name, change in changes.items():
            before = tensors.pop(name, next(iter(tensors.values())))
            if change is not None:
                tensors[name] = change(before)
        shutil.rmtree(checkpoint_in(run))
        checkpoint.save(run / "checkpoints", saved.step, saved.groups, saved.meta, 1)

    return replace


def edit_manifest(change: Callable[[dict[str, Any]], object]) -> Make:
    """Change a manifest, its digest with it."""

    def replace(run: Path) -> None:
        path = checkpoint_in(run) / "manifest.json"
        body = json.loads(path.read_text())
        del body["sha256"]
        change(body)
        path.write_bytes(checkpoint._render(body))

    return replace


def zero_page(raw: bytes) -> bytes:
    return raw[:4096] + bytes(4096) + raw[8192:]


def tampered(id: str, command: str, run: Make, message: str, code: int = 3) -> Row:
    """Refuse a run that was tampered with."""
    return Row(id, command, message, code, run=run)


LEFT_OUT = "; was it written by another version, or its config.json edited?"
NO_RUN = "{0}/config.json: missing, so {0} is no run; expected a folder that `uavlab train` made."
BROKEN = "run/checkpoints holds no intact checkpoint. {}"
SAVED = "run/checkpoints/ckpt-000000000008"
BEST, MANIFEST = (BROKEN.format(f"{SAVED}/{name} {{}}") for name in ("best.npz", "manifest.json"))
DAMAGED = "is damaged: it does not match the SHA-256 of its manifest."
OTHER = f"{SAVED}: does not fit the settings of its run ({{}}){LEFT_OUT}"
NO_POLICY = f"{SAVED}: keeps no policy of finite numbers; evaluate another run, or train a new one."
EDITED = (
    "run/config.json: edited or damaged: {}. Undo the edit, or move the file away, and `uavlab resume run` restores "
    "it. Settings are changed by `uavlab resume RUN --set NAME=VALUE`."
)
RESTORED = " `uavlab resume run` restores it from the newest checkpoint."
FORMAT = "has format {}; this uavlab … reads format 1."
NO_JSON = "{}: damaged, it cannot be read as JSON; expected a file that uavlab wrote."
NO_OBJECT = "{}: expected a JSON object, got something else; was it written by uavlab?"

ROWS = (
    Row("ckp-1", "evaluate runs/none", NO_RUN.format("runs/none"), 3, alone=True),
    Row("ckp-1 folder", "resume mine", NO_RUN.format("mine"), 3, {"mine": Path.mkdir}),
    Row("ckp-1 preset", f"fly {P}", f"'{P}' is a preset, expected a run; train it first: uavlab train {P}."),
    Row("ckp-1 name", "fly first", "'first' is neither a run nor a preset; expected the folder of a run."),
    tampered(
        "ckp-1 empty",
        "evaluate run",
        lambda run: shutil.rmtree(run / "checkpoints"),
        BROKEN.format("Unfinished ones: 0."),
    ),
    tampered(
        "ckp-2",
        "evaluate run",
        member("best.npz", lambda raw: raw[:-9]),
        BEST.format("has … bytes, its manifest says …."),
    ),
    tampered(
        "ckp-3", "evaluate run", member("best.npz", lambda raw: bytes([raw[0] ^ 1]) + raw[1:]), BEST.format(DAMAGED)
    ),
    tampered("ckp-4", "resume run", member("learner.npz", zero_page), BROKEN.format(f"{SAVED}/learner.npz {DAMAGED}")),
    tampered(
        "ckp-5",
        "resume run",
        member("manifest.json", lambda raw: raw.replace(b'"step": 8', b'"step": 9')),
        MANIFEST.format("is damaged or was edited: it does not match its own digest."),
    ),
    tampered(
        "ckp-5 cut",
        "resume run",
        member("manifest.json", lambda raw: raw[:100]),
        MANIFEST.format("is damaged: it cannot be read as a manifest."),
    ),
    *(
        tampered(
            f"ckp-5 {what}",
            "fly run",
            edit_manifest(change),
            MANIFEST.format("was not written by uavlab: it lacks an entry or names a file outside its folder."),
        )
        for what, change in {
            "key": lambda body: body.pop("step"),
            "path": lambda body: body["members"].update({"../best": body["members"]["best"]}),
            "list": lambda body: body["members"].update(best=["bytes", "sha256"]),
        }.items()
    ),
    tampered(
        "ckp-6", "resume run", edit_manifest(lambda body: body.update(format=9)), MANIFEST.format(FORMAT.format(9))
    ),
    tampered(
        "ckp-7", "resume run", edit_manifest(lambda body: body.update(format=0)), MANIFEST.format(FORMAT.format(0))
    ),
    tampered(
        "ckp-8",
        "resume run",
        lambda run: shutil.copy(checkpoint_in(run) / "learner.npz", checkpoint_in(run) / "best.npz"),
        BEST.format("has … bytes, its manifest says …."),
    ),
    tampered(
        "ckp-12",
        "evaluate run",
        state("best", parameters=lambda it: it[..., 1:]),
        "run: keeps policies of shape (1, 2, 171), its settings describe 1 run(s) of networks with 172 parameters"
        f"{LEFT_OUT}",
    ),
    tampered("ckp-12 resume", "resume run", edit_settings(hidden=4096), EDITED.format("hidden 8 -> 4096")),
    tampered("ckp-12 shape", "resume run", state("learner", target=lambda it: it[..., 1:]), OTHER.format("…")),
    tampered("ckp-13", "resume run", state("learner", target=None), OTHER.format("'target'")),
    tampered(
        "ckp-13 extra", "resume run", state("learner", more=torch.clone), OTHER.format("more: (…) of torch.float32")
    ),
    tampered("ckp-13 best", "evaluate run", state("best", parameters=None), NO_POLICY),
    tampered(
        "ckp-14", "resume run", state("learner", target=torch.Tensor.half), OTHER.format("target: (…) of torch.float…")
    ),
    tampered("ckp-15", "evaluate run", state("best", parameters=lambda it: it / 0), NO_POLICY),
    Row(
        "ckp-19",
        "evaluate run --episodes 2",
        code=0,
        run=lambda run: (run / "checkpoints" / "ckpt-000000000099").symlink_to("nowhere"),
        out="completion +0.000",
    ),
    tampered(
        "ckp-20",
        "evaluate run",
        lambda run: checkpoint_in(run).rename(run / "checkpoints" / ".tmp-ckpt-000000000008"),
        BROKEN.format("Unfinished ones: 1."),
    ),
    tampered("ckp-22", "resume run", edit_settings(update="loop"), EDITED.format("update 'batched' -> 'loop'")),
    tampered(
        "ckp-23", "fly run", member("best.npz", lambda raw: b""), BEST.format("has 0 bytes, its manifest says ….")
    ),
    tampered(
        "ckp-24",
        "resume run",
        lambda run: [path.unlink() for path in checkpoint_in(run).glob("replay*")],
        BROKEN.format(f"{SAVED}/replay-000000000000-000000000032.npz cannot be read (No such file or directory).")
        + " At update 8 replay alone is broken: --fresh-replay goes on from it.",
    ),
    tampered("run-1 text", "evaluate run", write("config.json", "{"), NO_JSON.format("run/config.json") + RESTORED),
    tampered(
        "run-1 list", "export run copy", write("config.json", "[]"), NO_OBJECT.format("run/config.json") + RESTORED
    ),
    tampered("run-1 null", "fly run", write("config.json", "null"), NO_OBJECT.format("run/config.json") + RESTORED),
    tampered(
        "run-1 preset",
        "evaluate run --policy random",
        write("config.json", '{"preset": 3, "values": {}}'),
        f"run/config.json: expected the preset and the values of a run.{RESTORED}",
    ),
    tampered(
        "run-1 new",
        "resume run",
        lambda run: (shutil.rmtree(run / "checkpoints"), write("config.json", "{")(run)),
        NO_JSON.format("run/config.json"),
    ),
    tampered(
        "run-1 edited",
        "resume run",
        lambda run: (shutil.rmtree(run / "checkpoints"), edit_settings(dt=0.5)(run)),
        "run/config.json: edited or damaged: it does not match its own digest. Undo the edit, or start a new run. "
        "Settings are changed by `uavlab resume RUN --set NAME=VALUE`.",
    ),
    tampered(
        "run-1 unknown",
        "evaluate run",
        write("config.json", '{"preset": "\\u001b[2J<b>", "values": {}}'),
        r"run/config.json: damaged: preset '\x1b[2J<b>', and it does not match its own digest." + RESTORED,
    ),
    tampered(
        "run-1 values",
        "evaluate run",
        edit_settings(lr="x", hiden=3),
        EDITED.format("lr 0.001 -> 'x'; hiden None -> 3"),
    ),
    *(
        tampered(f"run-1 {name}", command, edit_settings(**{name: value}), EDITED.format(f"{name} {before} -> {value}"))
        for command, name, before, value in (
            ("evaluate run", "crash_radius", 20.0, 40.0),
            ("fly run", "horizon", 6, 7),
            ("export run copy", "obstacles", 1, 5),
            ("evaluate run --policy random", "dt", 1.0, 0.5),
            ("export run copy.pt2", "formation_radius", 130.0, 160.0),
            ("resume run", "updates", 8, 9),
            ("resume run --updates 10", "keep", 1, 2),
        )
    ),
    tampered("run-2", "evaluate run --episodes 2", write("run.json", "["), NO_JSON.format("run/run.json")),
    tampered("run-2 null", "evaluate run", write("run.json", "null"), NO_OBJECT.format("run/run.json")),
)
