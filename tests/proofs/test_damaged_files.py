"""After damage to the files of checkpoints the newest intact one is loaded, and never a wrong number."""

import json
import os
import random
import shutil
import subprocess
import warnings
from collections.abc import Callable
from pathlib import Path
from threading import Event
from types import ModuleType

import pytest
import torch

from tests.support.sweeps import SETTINGS, flip_bits, flip_every_file
from tests.unit.storage.test_checkpoint import bits, mutant, real, state
from uavlab.core.errors import FileError
from uavlab.sweeps.driver import RESULT, last_result, run_trial
from uavlab.sweeps.spec import Trial

PAGE = 4096
META = {"scores": list(range(1000, 2000))}  # most of a manifest, so that damage to it changes what is loaded
ROWS = {f"replay-{i}": {"reward": torch.arange(3000.0) + i} for i in range(3)}  # each in this checkpoint and later ones

Damage = Callable[[random.Random, Path, Path], None]
"""Damages files, given dice, a file of a checkpoint, and another file of the folder."""


def rewrite(change: Callable[[random.Random, bytes], bytes]) -> Damage:
    """Change a file's bytes in place, so that every checkpoint that shares it is hit."""
    return lambda dice, path, other: path.write_bytes(change(dice, path.read_bytes()))


def flip(dice: random.Random, raw: bytes) -> bytes:
    at = dice.randrange(len(raw))
    return raw[:at] + bytes([raw[at] ^ 1 << dice.randrange(8)]) + raw[at + 1 :]


def swap_bytes(dice: random.Random, raw: bytes) -> bytes:
    at = dice.choice([i for i in range(len(raw) - 1) if raw[i] != raw[i + 1]] or [0])
    return raw[:at] + raw[at + 1 : at + 2] + raw[at : at + 1] + raw[at + 2 :]


def page(dice: random.Random, raw: bytes) -> int:
    return dice.randrange(0, len(raw), PAGE)


def zero_page(dice: random.Random, raw: bytes) -> bytes:
    at = page(dice, raw)
    return raw[:at] + bytes(len(raw[at : at + PAGE])) + raw[at + PAGE :]


def double_page(dice: random.Random, raw: bytes) -> bytes:
    at = page(dice, raw)
    return raw[:at] + 2 * raw[at : at + PAGE] + raw[at + PAGE :]


def edit(dice: random.Random, raw: bytes) -> bytes:
    """Change one digit of a file."""
    digits = [i for i, byte in enumerate(raw) if byte in b"0123456789"]
    at = dice.choice(digits) if digits else 0
    return raw[:at] + b"%d" % ((raw[at] - 48 + 1) % 10) + raw[at + 1 :] if digits else raw + b"0"


def exchange(dice: random.Random, path: Path, other: Path) -> None:
    """Swap two files."""
    temporary = path.with_name("temporary")
    path.rename(temporary)
    other.rename(path)
    temporary.rename(other)


def fold(dice: random.Random, path: Path, other: Path) -> None:
    path.unlink()
    path.mkdir()


def pipe(dice: random.Random, path: Path, other: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def link(dice: random.Random, path: Path, other: Path) -> None:
    path.unlink()
    path.symlink_to(other)


def rename(dice: random.Random, path: Path, other: Path) -> None:
    path.parent.rename(path.parent.with_name(f"ckpt-{dice.randrange(4, 99):012d}"))


FAULTS: dict[str, Damage] = {
    "a flipped bit": rewrite(flip),
    "two bytes swapped": rewrite(swap_bytes),
    "cut short": rewrite(lambda dice, raw: raw[: dice.randrange(len(raw))]),
    "zeros at the end": rewrite(lambda dice, raw: raw[: dice.randrange(len(raw))].ljust(len(raw), b"\0")),
    "a page of zeros": rewrite(zero_page),
    "a page twice": rewrite(double_page),
    "emptied": rewrite(lambda dice, raw: b""),
    "grown": rewrite(lambda dice, raw: raw + dice.randbytes(9)),
    "a digit changed": rewrite(edit),
    "another's content": lambda dice, path, other: path.write_bytes(other.read_bytes()),
    "exchanged": exchange,
    "missing": lambda dice, path, other: path.unlink(),
    "a folder in its place": fold,
    "a pipe in its place": pipe,
    "a link to another": link,
    "a file more": lambda dice, path, other: shutil.copy(other, path.with_name("extra.npz")) and None,
    "the checkpoint renamed": rename,
}


def expected(step: int) -> dict[str, tuple]:
    return bits(state(step) | {name: rows for name, rows in ROWS.items() if int(name[-1]) < step})


def pristine(folder: Path) -> Path:
    """Save steps 1, 2 and 3, each with one more group, which later steps link."""
    earlier = None
    for step in (1, 2, 3):
        new = {name: rows for name, rows in ROWS.items() if int(name[-1]) == step - 1}
        old = [name for name in ROWS if int(name[-1]) < step - 1]
        earlier = real.save(folder, step, state(step) | new, META, unchanged=(earlier, old) if earlier else None)
    return folder


def contents(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in path.iterdir() if file.is_file()}


def intact(folder: Path, before: dict[str, dict[str, bytes]]) -> int | None:
    """Return the newest step whose files all have their old bytes and names, judged without the loader."""
    whole = [
        name
        for name, files in before.items()
        if (folder / name).exists() and files.items() <= contents(folder / name).items()
    ]
    return max((int(name.removeprefix("ckpt-")) for name in whole), default=None)


def wrong(module: ModuleType, base: Path, count: int, seed: int) -> tuple[list[str], int]:
    """Damage ``count`` copies, one to three times each; return the loader's errors and the number of fallbacks."""
    dice = random.Random(seed)
    source = pristine(base / "pristine")
    before = {path.name: contents(path) for path in source.iterdir()}
    errors, fallbacks = [], 0
    for number in range(count):
        folder = base / "damaged"
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run(["cp", "-a", source, folder], check=True)  # keeps what is shared between checkpoints shared
        damages = []
        for _ in range(dice.choice((1, 1, 2, 3))):
            files = sorted(path for path in folder.rglob("*.*[nz]") if path.is_file() and path.stat().st_size > 1)
            name, path, other = dice.choice(list(FAULTS)), *dice.sample(files, 2)
            FAULTS[name](dice, path, other)
            damages.append(f"{path.relative_to(folder)}: {name}")
        best = intact(folder, before)
        fallbacks += best != 3
        if problem := find_problem(module, folder, best):
            errors.append(f"{number}: {', '.join(damages)}: {problem}")
    return errors, fallbacks


def find_problem(module: ModuleType, folder: Path, best: int | None) -> str:
    """Return the loader's error with a damaged folder whose newest intact checkpoint is ``best``, or an empty text."""
    listed = sorted(str(path) for path in folder.rglob("*"))
    with warnings.catch_warnings(record=True) as messages:
        warnings.simplefilter("always")
        try:
            loaded = module.newest(folder)
        except FileError as error:
            named = all(path.name in str(error) for path in folder.iterdir())
            return "" if best is None and named else f"refused, {best} is intact: {error}"
    if sorted(str(path) for path in folder.rglob("*")) != listed:
        return "changed the folder"
    if loaded.step != best or loaded.meta != META or bits(loaded.groups) != expected(loaded.step):
        return f"loaded {loaded.step}, expected {best}"
    skipped = [path for path in folder.iterdir() if int(path.name.removeprefix("ckpt-")) > loaded.step]
    return "" if len(messages) == len(skipped) else f"{len(skipped)} skipped, {len(messages)} warnings"


@pytest.mark.parametrize(("count", "seed"), [(1000, 0), pytest.param(10_000, 1, marks=pytest.mark.soak)])
def test_damage_is_never_loaded_and_the_newest_intact_checkpoint_is_found(
    tmp_path: Path, count: int, seed: int, proof: Callable[[str, str], None]
) -> None:
    errors, fallbacks = wrong(real, tmp_path, count, seed)
    assert errors == []
    assert fallbacks > count / 2  # faults that did nothing would prove nothing
    proof("damaged checkpoints", f"{count} faults of {len(FAULTS)} kinds, 0 loaded, the last intact one always found")


@pytest.mark.parametrize(
    "change",
    [
        ('if hashlib.file_digest(handle, "sha256").hexdigest() != entry["sha256"]', "if False"),
        ("if not intact", "if False"),
        ("if checkpoint.step != _step(path)", "if False"),
        ("            problems.append(str(error))\n            continue", "            raise"),
    ],
)
def test_a_loader_that_looks_less_closely_is_caught(tmp_path: Path, change: tuple[str, str]) -> None:
    assert wrong(mutant(change), tmp_path, 200, 2)[0] != []


def test_bytes_on_the_disk_are_the_judge(tmp_path: Path) -> None:
    folder = pristine(tmp_path / "x")
    before = {path.name: contents(path) for path in folder.iterdir()}
    assert intact(folder, before) == 3
    assert len({path.stat().st_ino for path in folder.glob("*/replay-0.npz")}) == 1
    manifest = folder / "ckpt-000000000003" / "manifest.json"
    manifest.write_bytes(json.dumps(json.loads(manifest.read_bytes())).encode())
    assert intact(folder, before) == 2
    (folder / "ckpt-000000000001" / "replay-0.npz").write_bytes(b"?")  # shared by all three
    assert intact(folder, before) is None


def test_flipped_bits_of_a_result_of_a_sweep(tmp_path: Path, proof: Callable[[str, str], None]) -> None:
    run_trial(tmp_path / "t", Trial("leader_follower", SETTINGS, 1), 3, Event())
    refused = flip_bits(tmp_path / "t" / RESULT, 4000, lambda: last_result(tmp_path / "t"))
    assert refused > 3900
    files = flip_every_file(tmp_path / "t", 40)
    assert files["run.json"] > 0
    proof("flipped bits of a trial.json", f"4,000, of which {refused:,} are refused and the others change nothing")
