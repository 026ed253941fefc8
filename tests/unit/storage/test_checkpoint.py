"""A checkpoint survives crashes and full disks, and loading returns exactly the bits that were saved."""

import errno
import json
import os
import resource
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from torch import Tensor

from uavlab.core.errors import ConfigError, FileError, ResourceError
from uavlab.storage import checkpoint as real

SOURCE = Path(real.__file__).read_text()
CALLS = (
    "fsync",
    "link",
    "mkdir",
    "rename",
    "rmdir",
    "unlink",
)  # every call by which a save changes what is on the disk


def state(seed: float = 0.0) -> dict[str, dict[str, Tensor]]:
    return {
        "learner": {
            "actor.weight": torch.arange(6, dtype=torch.float32).reshape(2, 3).T + seed,  # not contiguous
            "nan": torch.tensor([float("nan"), float("inf"), -0.0], dtype=torch.float64),
            "file": torch.tensor(7 + int(seed)),  # no dimensions, and a name that numpy.savez cannot take
        },
        "source": {"done": torch.tensor([True, False]), "generator": torch.arange(256).to(torch.uint8)},
        "rng": {"empty": torch.zeros(0, 3, dtype=torch.float16)},
    }


def bits(groups: dict[str, dict[str, Tensor]]) -> dict[str, tuple]:
    return {
        f"{group}/{name}": (t.dtype, tuple(t.shape), t.contiguous().numpy().tobytes())
        for group, tensors in groups.items()
        for name, t in tensors.items()
    }


def mutant(*changes: tuple[str, str]) -> ModuleType:
    """Load the module with each (old, new) piece of its source replaced."""
    source, module = SOURCE, ModuleType("mutant")
    for old, new in changes:
        assert source.count(old) == 1, old
        source = source.replace(old, new)
    exec(compile(source, "mutant", "exec"), module.__dict__)
    return module


def tree(folder: Path) -> dict[str, tuple[int, bytes]]:
    return {str(p.relative_to(folder)): (p.stat().st_mtime_ns, p.read_bytes()) for p in folder.rglob("*.*[nz]")}


def test_every_bit_comes_back(tmp_path: Path) -> None:
    path = real.save(tmp_path / "run", 12, state(), {"config": {"lr": 3e-4}, "best": None})
    assert path == tmp_path / "run" / "ckpt-000000000012"
    loaded = real.load(path)
    assert (loaded.step, loaded.meta) == (12, {"config": {"lr": 3e-4}, "best": None})
    assert bits(loaded.groups) == bits(state())
    assert bits(loaded.groups) != bits(state(1.0))


def test_equal_states_are_equal_bytes(tmp_path: Path) -> None:
    a, b = (real.save(tmp_path / name, 1, state(), {}) for name in "ab")
    assert [p.read_bytes() for p in sorted(a.iterdir())] == [p.read_bytes() for p in sorted(b.iterdir())]


def test_surplus_older_ones_and_those_of_a_given_up_future_go(tmp_path: Path) -> None:
    real.save(tmp_path, 9, state(), {})
    for step in (1, 2, 3, 4):
        real.save(tmp_path, step, state(step), {}, keep=2)
    assert sorted(p.name for p in tmp_path.iterdir()) == [f"ckpt-{step:012d}" for step in (3, 4)]
    real.save(tmp_path, 4, state(5.0), {}, keep=1)  # the same step again: replaced
    assert [p.name for p in tmp_path.iterdir()] == [real.folder_name(4)]
    assert bits(real.load(tmp_path / "ckpt-000000000004").groups) == bits(state(5.0))


Fault = Callable[[Path], object]


def make_faults(pristine: Path, other: Path) -> dict[str, Fault]:
    """Return each way to damage a copy of ``pristine``, by name."""
    faults: dict[str, Fault] = {"learner.npz: another's": lambda path: shutil.copy(other / "learner.npz", path)}
    for file in sorted(pristine.iterdir()):
        raw, name = file.read_bytes(), file.name
        contents = {
            f"flip at {at}": raw[:at] + bytes([raw[at] ^ 1 << at % 8]) + raw[at + 1 :]
            for at in {0, len(raw) - 1, *range(0, len(raw), 37)}
        }
        contents |= {"truncated": raw[:-9], "longer": raw + b"\0", "empty": b""}
        contents["zero tail"] = raw[: len(raw) // 2].ljust(len(raw), b"\0")
        if name == "manifest.json":
            contents["other step"] = raw.replace(b'"step": 5', b'"step": 6')
            contents["same values, other text"] = json.dumps(json.loads(raw)).encode()
        for fault, content in contents.items():
            faults[f"{name}: {fault}"] = lambda path, name=name, content=content: (path / name).write_bytes(content)
        faults[f"{name}: missing"] = lambda path, name=name: (path / name).unlink()
        faults[f"{name}: a folder"] = lambda path, name=name: ((path / name).unlink(), (path / name).mkdir())
    return faults


def silent(module: ModuleType, tmp_path: Path) -> list[str]:
    """Return the faults that loading did not refuse by a FileError with the file's name."""
    pristine, other = (real.save(tmp_path / f"{step}", step, state(step), {"lr": 1}) for step in (5, 6))
    missed = []
    for number, (name, damage) in enumerate(make_faults(pristine, other).items()):
        path = shutil.copytree(pristine, tmp_path / "faulty" / f"{number}")
        damage(path)
        try:
            module.load(path)
            missed.append(name)
        except FileError as error:
            missed += [] if name.partition(":")[0] in str(error) else [f"{name}: {error}"]
    return missed


def test_every_fault_is_refused_by_name(tmp_path: Path) -> None:
    assert silent(real, tmp_path) == []


@pytest.mark.parametrize(
    "change",
    [
        ('if hashlib.file_digest(handle, "sha256").hexdigest() != entry["sha256"]', "if False"),
        ("if not intact", "if False"),
        ("intact = _render(body) == raw", "intact = json.loads(_render(body)) == json.loads(raw)"),
    ],
)
def test_a_loader_that_looks_less_closely_is_caught(tmp_path: Path, change: tuple[str, str]) -> None:
    assert silent(mutant(change), tmp_path) != []


def forge(path: Path, change: Callable[[dict], object]) -> None:
    """Change a manifest, and make its digests fit again."""
    body = json.loads((path / "manifest.json").read_text())
    del body["sha256"]
    change(body)
    for group, entry in body["members"].items():
        if (file := path / f"{group}.npz").exists() and isinstance(entry, dict):
            with file.open("rb") as handle:
                digest = real.hashlib.file_digest(handle, "sha256").hexdigest()
            entry.update(bytes=file.stat().st_size, sha256=digest)
    (path / "manifest.json").write_bytes(real._render(body))


def test_forgeries_run_no_code_and_take_no_memory(tmp_path: Path) -> None:
    path = real.save(tmp_path, 1, state(), {})
    np.savez(path / "rng.npz", empty=np.array([Path()], dtype=object))  # pickled
    forge(path, lambda body: None)
    with pytest.raises(FileError, match=r"rng\.npz was not written by uavlab: .*allow_pickle=False"):
        real.load(path)
    with zipfile.ZipFile(path / "rng.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("empty.npy", bytes(10**6))
    forge(path, lambda body: None)
    with pytest.raises(FileError, match=r"rng\.npz was not written by uavlab: it is compressed"):
        real.load(path)
    with zipfile.ZipFile(path / "rng.npz", "w", zipfile.ZIP_BZIP2) as archive:  # a directory that lies would not show
        archive.writestr("empty.npy", os.urandom(99))
    forge(path, lambda body: None)
    with pytest.raises(FileError, match=r"rng\.npz was not written by uavlab: it is compressed"):
        real.load(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda body: body.update(format=2), r"has format 2; this uavlab .* reads format 1"),
        (lambda body: body.pop("step"), "lacks an entry"),
        (lambda body: body["members"].update({"../learner": {"bytes": 1, "sha256": ""}}), "names a file outside"),
        (lambda body: body["members"].update(rng=["bytes", "sha256"]), "was not written by uavlab"),
        (lambda body: body["members"].update(gone={"bytes": 1, "sha256": ""}), r"gone\.npz cannot be read \(No such"),
    ],
)
def test_strange_manifests_are_refused(tmp_path: Path, change: Callable[[dict], object], message: str) -> None:
    path = real.save(tmp_path, 1, state(), {})
    forge(path, change)
    with pytest.raises(FileError, match=message):
        real.load(path)


def test_newest_falls_back_over_broken_ones_and_touches_nothing(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        real.save(tmp_path, step, state(step), {})
    damaged = tmp_path / "ckpt-000000000003" / "source.npz"
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"?")
    (tmp_path / "ckpt-000000000002" / "manifest.json").unlink()
    before = tree(tmp_path)
    with pytest.warns(UserWarning, match="Falling back to ckpt-000000000001.$") as caught:
        assert real.newest(tmp_path).path.name == "ckpt-000000000001"
    assert tree(tmp_path) == before
    assert len(before) == 11  # 3 times (3 groups and a manifest), less one manifest
    messages = [str(warning.message) for warning in caught]
    assert len(messages) == 2
    assert "source.npz is damaged" in messages[0]
    assert "ckpt-000000000002 is no complete checkpoint" in messages[1]


def test_newest_up_to_a_step(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        real.save(tmp_path, step, state(step), {})
    assert [real.newest(tmp_path, most=most).step for most in (None, 9, 3, 2, 1)] == [3, 3, 3, 2, 1]
    with pytest.raises(FileError, match="holds no intact checkpoint"):
        real.newest(tmp_path, most=0)


def test_without_a_checkpoint_the_message_counts_unfinished_ones(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"nowhere holds no intact checkpoint. Unfinished ones: 0\."):
        real.newest(tmp_path / "nowhere")
    (tmp_path / ".tmp-ckpt-000000000001").mkdir()
    with pytest.raises(FileError, match=r"holds no intact checkpoint. Unfinished ones: 1\."):
        real.newest(tmp_path)
    (tmp_path / "ckpt-000000000002").mkdir()
    with pytest.raises(FileError, match=r"ckpt-000000000002 is no complete checkpoint: manifest\.json cannot be read"):
        real.newest(tmp_path)


class Crash(BaseException):
    """Stands for a killed process: no later call reaches the disk."""


def interfere(monkeypatch: pytest.MonkeyPatch, at: int, error: BaseException, for_good: bool) -> list[str]:
    """Make the ``at``-th call that changes the disk raise, and if ``for_good`` all later ones too; log the calls."""
    log: list[str] = []

    def wrap(name: str, call: Callable) -> Callable:
        def wrapped(*args: object, **kwargs: object) -> object:
            log.append(name)
            if len(log) - 1 == at or (for_good and len(log) - 1 > at):
                raise error
            return call(*args, **kwargs)

        return wrapped

    for name in CALLS:
        monkeypatch.setattr(os, name, wrap(name, getattr(os, name)))
    monkeypatch.setattr(np.lib.format, "write_array", wrap("write", np.lib.format.write_array))
    return log


def second_save(module: ModuleType, folder: Path, at: int, error: BaseException, step: int) -> str:
    """Save ``step`` with keep=1 after step 1, under interference; return how that ended."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(folder.parent / "first", folder)
    with pytest.MonkeyPatch.context() as monkeypatch:
        log = interfere(monkeypatch, at, error, for_good=isinstance(error, Crash))
        try:
            module.save(folder, step, state(2.0), {}, keep=1)
            ended = "saved"
        except (Crash, ResourceError) as caught:
            ended = type(caught).__name__
    content = bits(module.newest(folder).groups)
    assert content in (bits(state(1.0)), bits(state(2.0))), f"wrong content after {log}"
    assert ended == "Crash" or not (folder / f".tmp-ckpt-{step:012d}").exists(), f"rest of a save after {log}"
    return ended if at < len(log) else "over"


def endings(module: ModuleType, folder: Path, error: BaseException, step: int) -> list[str]:
    """Interfere with each call of a save in turn; raise if a state is lost."""
    real.save(folder.parent / "first", 1, state(1.0), {})
    ends: list[str] = []
    while not ends or ends[-1] != "over":
        ends.append(second_save(module, folder, len(ends), error, step))
    return ends[:-1]


@pytest.mark.parametrize("step", [1, 2])  # the same step again, and the next
def test_a_crash_at_any_call_loses_nothing(tmp_path: Path, step: int) -> None:
    ends = endings(real, tmp_path / "run", Crash(), step)
    assert set(ends) == {"Crash"}
    assert len(ends) > 15
    real.save(tmp_path / "run", 3, state(3.0), {}, keep=1)  # what crashes left behind goes with the next save
    assert [p.name for p in (tmp_path / "run").iterdir()] == ["ckpt-000000000003"]


@pytest.mark.parametrize(("step", "number"), [(1, errno.EACCES), (2, errno.ENOSPC)])
def test_an_error_at_any_call_loses_nothing(tmp_path: Path, step: int, number: int) -> None:
    ends = endings(real, tmp_path / "run", OSError(number, os.strerror(number)), step)
    assert set(ends[1:]) == {"ResourceError"}  # the first call makes a folder that is there already


DELETE_FIRST = ("        partial.mkdir()", "        [*map(shutil.rmtree, _checkpoints(folder)), partial.mkdir()]")
HIDE_FIRST = ('final.with_suffix(".old")', 'final.with_name(".backup")')
IN_PLACE = [
    ("partial = folder / (UNFINISHED + final.name)", "partial = final"),
    ("partial.mkdir()", "partial.mkdir(exist_ok=True)"),
    ("        _publish(partial, final)\n", ""),
    ('open("xb+")', 'open("wb+")'),
    ('open("xb")', 'open("wb")'),
    ("        shutil.rmtree(partial, ignore_errors=True)\n", "        pass\n"),
]


MUTANTS = {"unlink_first": ([DELETE_FIRST], 2), "two_renames": ([HIDE_FIRST], 1), "in_place": (IN_PLACE, 1)}


@pytest.mark.parametrize(("changes", "step"), MUTANTS.values(), ids=MUTANTS)
def test_a_writer_that_can_lose_everything_is_caught(tmp_path: Path, changes: list[tuple[str, str]], step: int) -> None:
    broken = mutant(*changes)
    with pytest.raises((FileError, AssertionError), match=r"no intact checkpoint|wrong content"):
        endings(broken, tmp_path / "run", Crash(), step)


def durable_order(module: ModuleType, folder: Path) -> list[str]:
    """Log what a save makes durable and renames, by the names that things have in the end."""
    real.save(folder, 1, {"a": {}}, {})
    log: list[tuple[str, int | str]] = []
    fsync, rename = os.fsync, os.rename
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda fd: (log.append(("fsync", os.fstat(fd).st_ino)), fsync(fd)))
        patch.setattr(os, "rename", lambda a, b: (log.append(("rename", Path(b).name)), rename(a, b)))
        path = module.save(folder, 2, {"a": {}}, {}, keep=1)
    names = {p.stat().st_ino: p.name for p in (*path.iterdir(), path, folder, folder.parent)}
    return [f"{call} {names.get(what, what)}" for call, what in log]


def test_everything_is_on_the_disk_before_it_has_its_name(tmp_path: Path) -> None:
    order = [
        f"fsync {tmp_path.name}",
        "fsync a.npz",
        "fsync manifest.json",
        "fsync ckpt-000000000002",
        "rename ckpt-000000000002",
        "fsync run",
        "rename .tmp-ckpt-000000000001",  # the first step towards removing the old one
    ]
    assert durable_order(real, tmp_path / "run") == order
    shutil.rmtree(tmp_path / "run")
    assert durable_order(mutant(("    _sync_folder(final.parent)\n", "")), tmp_path / "run") == order[:5] + order[6:]


def require_a_synced_copy(module: ModuleType, folder: Path, number: int) -> None:
    """Save where hard links are refused; the copy of a group must be on the disk before the checkpoint has its name."""
    first, synced = real.save(folder, 1, state(), {}), set[int]()
    fsync, rename, at_rename = os.fsync, os.rename, []

    def refuse(*paths: object) -> None:
        raise OSError(number, os.strerror(number))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "link", refuse)
        patch.setattr(os, "fsync", lambda fd: (synced.add(os.fstat(fd).st_ino), fsync(fd)))
        patch.setattr(os, "rename", lambda a, b: (at_rename.append(set(synced)), rename(a, b)))
        second = module.save(folder, 2, {"rng": {}}, {}, unchanged=(first, ["learner", "source"]))
    copies = [second / "learner.npz", second / "source.npz"]
    assert all(copy.stat().st_nlink == 1 and copy.stat().st_ino in at_rename[0] for copy in copies)
    shutil.rmtree(first)
    assert bits(real.load(second).groups) == bits({**state(), "rng": {}})


@pytest.mark.parametrize("number", sorted(real.NO_HARD_LINKS), ids=errno.errorcode.get)
def test_where_hard_links_are_refused_a_save_copies_and_syncs(tmp_path: Path, number: int) -> None:
    require_a_synced_copy(real, tmp_path / "run", number)


COPY = '            with new.open("rb+") as handle:\n                _sync(handle)\n'


@pytest.mark.parametrize("change", [(COPY, ""), ("shutil.copyfile(old, new)", "new.touch()")], ids=["sync", "copy"])
def test_a_copy_that_could_be_lost_is_caught(tmp_path: Path, change: tuple[str, str]) -> None:
    with pytest.raises((AssertionError, FileError)):
        require_a_synced_copy(mutant(change), tmp_path / "run", errno.EPERM)


def test_too_little_space_is_told_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: shutil._ntuple_diskusage(1000, 601, 399))
    with pytest.raises(ResourceError, match=r"the disk is too full. It needs 480 bytes, 399 are free\."):
        real.save(tmp_path, 1, {"a": {"x": torch.zeros(100)}}, {})  # 100 x 4 bytes x 1.2
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_fills_up_leaves_no_rest(tmp_path: Path) -> None:
    real.save(tmp_path, 1, state(), {})
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(ResourceError, match="File too large"):
            real.save(tmp_path, 2, {"a": {"x": torch.zeros(100_000)}}, {})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [p.name for p in tmp_path.iterdir()] == ["ckpt-000000000001"]
    assert real.newest(tmp_path).path == tmp_path / "ckpt-000000000001"


def test_wrong_arguments_write_nothing(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"group '\.\./x': use letters"):
        real.save(tmp_path / "run", 1, {"../x": {}}, {})
    with pytest.raises(ConfigError, match="meta must be JSON values: Object of type Tensor"):
        real.save(tmp_path / "run", 1, {}, {"best": torch.tensor(1.0)})
    with pytest.raises(TypeError, match="BFloat16"):
        real.save(tmp_path, 1, {"a": {"x": torch.zeros(2, dtype=torch.bfloat16)}}, {})
    assert list(tmp_path.iterdir()) == []
