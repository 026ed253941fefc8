"""A run's folder has one writing process, and a run resumes only with settings that fit its state."""

import errno
import json
import os
import random
import re
import shutil
import warnings
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.support.fixtures_config import tiny, train_tiny
from tests.support.tampered_runs import edit_manifest
from uavlab.core.errors import ConfigError, FileError, ResourceError, UavlabError
from uavlab.core.registry import Resume
from uavlab.experiment import build, policy
from uavlab.experiment import run_dir as module
from uavlab.experiment.config import Config, parts
from uavlab.experiment.names import own_digest, run_folder
from uavlab.experiment.run import Run
from uavlab.experiment.run_dir import lock_run_dir, read_config, require_resumable, run_name
from uavlab.experiment.settings import settings_of
from uavlab.storage import checkpoint


class TestClaim:
    def test_an_interrupt_gives_it_back_though_somebody_keeps_the_frame(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def interrupted(folder: Path, run: bool) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(module, "require_empty", interrupted)
        with pytest.raises(KeyboardInterrupt) as interrupt, lock_run_dir(tmp_path / "run", new=True):
            pass
        with lock_run_dir(tmp_path / "run"):
            assert interrupt.tb is not None

    def test_the_second_is_told_who_has_it(self, tmp_path: Path) -> None:
        folder = tmp_path / "run"
        with lock_run_dir(folder), pytest.raises(ConfigError) as refusal, lock_run_dir(folder):
            pass
        since = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\+00:00"
        assert re.fullmatch(
            rf"{re.escape(str(folder))}: in use by process {os.getpid()} on \S+ since {since}; wait until that process "
            r"has ended, or stop it\.",
            str(refusal.value),
        )
        assert free(folder)

    @pytest.mark.parametrize("name", ["thesis.tex", "config.json", "run.json"])
    def test_a_refused_claim_holds_nothing(self, tmp_path: Path, name: str) -> None:
        (tmp_path / name).touch()
        with pytest.raises(ConfigError) as refusal, lock_run_dir(tmp_path, new=True):
            pass
        hint = f", or `uavlab resume {tmp_path}`" if name == "run.json" else ""  # an exported copy has none
        assert str(refusal.value) == f"{tmp_path}: not empty; choose a new folder{hint}."
        assert free(tmp_path)

    def test_a_claim_that_cannot_be_told_holds_nothing(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def full(*given: Any, **named: Any) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(Path, "write_text", full)
            with pytest.raises(ResourceError, match="No space left"), lock_run_dir(tmp_path):
                pass
        assert free(tmp_path)

    def test_rests_of_a_killed_writer_are_cleared_away(self, tmp_path: Path) -> None:
        for name in (".run.json.123", ".config.json.7"):
            (tmp_path / name).touch()
        with lock_run_dir(tmp_path, new=True):
            assert os.listdir(tmp_path) == [".lock"]

    def test_where_nothing_can_be_written(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        with pytest.raises(ResourceError) as refusal, lock_run_dir(tmp_path / "file" / "run"):
            pass
        assert str(refusal.value) == f"{tmp_path}/file/run: cannot be written (Not a directory); choose another folder."

    def test_a_run_holds_it_while_it_trains(self, tmp_path: Path) -> None:
        run, folder = Run(tiny(), tmp_path / "run"), tmp_path / "run"
        assert free(folder)
        for progress in run.train():
            assert not free(folder)
            if progress.number == 3:
                run.stop()
        other = Run.resume(folder)
        list(other.train())
        with pytest.raises(ConfigError, match=r"another process went on with this run; continue with Run\.resume"):
            next(run.train())
        assert json.loads((folder / "run.json").read_text())["status"] == "complete"

    def test_settings_that_another_changed_are_noticed(self, tmp_path: Path) -> None:
        run = Run(tiny(), tmp_path / "run")
        next(Run.resume(tmp_path / "run", {"lr": 0.5}).train())
        with pytest.raises(ConfigError, match="another process went on with this run"):
            next(run.train())

    def test_a_run_goes_on_where_nobody_came_between(self, tmp_path: Path) -> None:
        run, whole = Run(tiny(), tmp_path / "run"), train_tiny()
        for stop in (2, 5, None):
            for progress in run.train():
                if progress.number == stop:
                    break
        assert (run.status, run.digest) == ("complete", whole.digest)

    def test_training_anew_ends_what_was_left_suspended(self, tmp_path: Path) -> None:
        run, whole = Run(tiny(), tmp_path / "run"), train_tiny()
        left = run.train()
        next(left)
        for _ in run.train():
            assert not free(tmp_path / "run")
        assert list(left) == []
        assert (run.status, run.digest) == ("complete", whole.digest)


def free(folder: Path) -> bool:
    """Return whether a folder is not locked."""
    try:
        with lock_run_dir(folder):
            return True
    except ConfigError:
        return False


def resumable(config: Config) -> list[str]:
    settings = [each for part in parts(config.task.settings) for each in settings_of(part)]
    return sorted(each.name for each in settings if each.resume is not Resume.NO)


class TestSettings:
    def test_changes_that_a_state_survives(self, finished: Path) -> None:
        config = read_config(finished, {"updates": 20}, {"lr": 0.5, "updates": 30})
        assert (config.run.updates, config.learner.lr, config.learner.hidden) == (30, 0.5, 8)

    @pytest.mark.parametrize(
        ("change", "change_text"),
        [
            ({"hidden": 16, "lr": 0.1}, "hidden 8 -> 16"),
            ({"capacity": 64, "followers": 3}, "capacity 32 -> 64, followers 1 -> 3"),
            ({"seed": 3}, "seed 0 -> 3"),
        ],
    )
    def test_changes_that_it_does_not_survive(self, finished: Path, change: dict[str, Any], change_text: str) -> None:
        before = (finished / "config.json").read_bytes()
        with pytest.raises(ConfigError) as refusal:
            Run.resume(finished, change)
        assert str(refusal.value) == (
            f"{finished}: cannot go on with {change_text}; start a new run for that. A resumed run may change "
            f"{', '.join(resumable(tiny()))}."
        )
        assert (finished / "config.json").read_bytes() == before

    def test_what_changes_no_number_is_not_told(self, tmp_path: Path) -> None:
        before = tiny().values
        assert require_resumable(tmp_path, before, tiny(updates=9, keep=1)) == []
        assert require_resumable(tmp_path, before, tiny(tau=0.5, keep=1)) == ["tau 0.01 -> 0.5"]

    def test_an_edited_config_is_noticed(self, tmp_path: Path) -> None:
        train_tiny(tmp_path / "run")
        path = tmp_path / "run" / "config.json"
        stored = json.loads(path.read_text())
        stored["values"]["batch"] = 4
        path.write_text(json.dumps(stored))
        with pytest.raises(
            FileError, match=r"run/config\.json: edited or damaged: batch 8 -> 4\. Undo the edit, or move"
        ):
            Run.resume(tmp_path / "run")

    def test_changed_targets_are_stored(self, tmp_path: Path) -> None:
        train_tiny(tmp_path / "run")
        run = Run.resume(tmp_path / "run", {"updates": 10})
        assert read_config(tmp_path / "run").run.updates == 8  # loading changes no file
        next(run.train())
        assert read_config(tmp_path / "run").run.updates == 10
        list(run.train())
        assert (run.status, run.number, run.parts.not_exact_reasons) == ("complete", 10, [])
        assert run.digest == train_tiny(updates=10).digest  # as if it had been the target from the start

    @pytest.mark.parametrize("change", [{"lr": 0.5}, {"updates": 4}, {"updates": 8}, {"minutes": 1e-9}])
    def test_changes_that_nothing_would_be_trained_with_are_refused(
        self, finished: Path, change: dict[str, Any]
    ) -> None:
        before = {path: path.read_bytes() for path in finished.glob("*.json*")}
        with pytest.raises(ConfigError) as refusal:
            Run.resume(finished, change)
        assert str(refusal.value) == (
            f"{finished}: update 8 is at its target, so nothing would be trained with {change}; set a farther one, "
            "updates or minutes, counted from the run's beginning."
        )
        assert {path: path.read_bytes() for path in before} == before

    def test_a_changed_row_is_told(self, tmp_path: Path) -> None:
        train_tiny(tmp_path / "run")
        path = tmp_path / "run" / "metrics.jsonl"
        path.write_text(path.read_text().replace("0.", "9.", 1))
        assert Run.resume(tmp_path / "run").parts.not_exact_reasons == [
            "update 8: rows of metrics were lost or changed"
        ]

    def test_a_target_beyond_an_end_that_was_scored_for_itself_is_not_exact(self, tmp_path: Path) -> None:
        train_tiny(tmp_path / "run", evaluate_every=100)
        assert Run.resume(tmp_path / "run").parts.not_exact_reasons == []
        run = Run.resume(tmp_path / "run", {"updates": 10})
        assert run.parts.not_exact_reasons == ["update 8: it was scored once more, at its former target"]
        next(run.train())
        assert Run.resume(tmp_path / "run").parts.not_exact_reasons == run.parts.not_exact_reasons  # listed once

    def test_minutes_alone_take_the_place_of_updates(self, tmp_path: Path) -> None:
        train_tiny(tmp_path / "run")
        run = Run.resume(tmp_path / "run", {"minutes": 5.0})
        assert (run.config.run.updates, run.config.run.minutes, run.done) == (None, 5.0, False)
        both = read_config(tmp_path / "run", {"minutes": 4.0, "updates": 9})
        assert (both.run.updates, both.run.minutes) == (9, 4.0)


def flips(raw: bytes, count: int) -> Iterator[bytes]:
    """Yield copies with one bit flipped at random places."""
    dice = random.Random(0)
    for _ in range(count):
        at = dice.randrange(len(raw))
        yield raw[:at] + bytes([raw[at] ^ 1 << dice.randrange(8)]) + raw[at + 1 :]


def unnoticed(folder: Path, raw: bytes, count: int) -> int:
    """Count flips of a bit of ``config.json`` that give other settings without a word."""
    silent = 0
    for content in flips(raw, count):
        (folder / "config.json").write_bytes(content)
        with warnings.catch_warnings(record=True) as messages, suppress(UavlabError):
            warnings.simplefilter("always")
            config = read_config(folder)
            silent += not messages and json.dumps(config.values) != json.dumps(tiny().values)
    return silent


def store(folder: Path, **values: Any) -> None:
    """Store other values in a run's settings and in its checkpoint."""
    stored = json.loads((folder / "config.json").read_text())
    stored["values"].update(values)
    stored["sha256"] = own_digest(stored)
    (folder / "config.json").write_text(json.dumps(stored))
    edit_manifest(lambda body: body["meta"]["values"].update(values))(folder)


class TestEdits:
    def test_flipped_bits_never_give_other_settings_unnoticed(
        self, tmp_path: Path, finished: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        folder = shutil.copytree(finished, tmp_path / "run")
        raw = (folder / "config.json").read_bytes()
        assert unnoticed(folder, raw, 300) == 0
        monkeypatch.setattr(module, "_require_saved", lambda *given: None)
        assert unnoticed(folder, raw, 300) > 0

    def test_a_change_before_its_first_checkpoint_is_none_of_them(self, tmp_path: Path, finished: Path) -> None:
        folder = shutil.copytree(finished, tmp_path / "run")
        next(Run.resume(folder, {"updates": 9, "lr": 0.5}).train())
        shutil.rmtree(folder / "checkpoints" / "ckpt-000000000009")
        assert policy.load(folder).config.learner.lr == 0.5
        assert Run.resume(folder).parts.not_exact_reasons[0] == "update 8: lr 0.001 -> 0.5"

    def test_settings_of_another_run_are_refused(self, tmp_path: Path, finished: Path) -> None:
        folder = shutil.copytree(finished, tmp_path / "run")
        Run(tiny(dt=0.5), tmp_path / "other")
        shutil.copy(tmp_path / "other" / "config.json", folder / "config.json")
        with pytest.raises(FileError, match=r"edited or damaged: dt 1\.0 -> 0\.5"):
            policy.load(folder)

    def test_an_exported_copy_is_compared_too(self, tmp_path: Path, finished: Path) -> None:
        copy = policy.export(policy.load(finished), tmp_path / "copy")
        assert policy.load(copy).config == policy.load(finished).config
        text = (copy / "config.json").read_text()
        (copy / "config.json").write_text(text.replace('"dt": 1.0', '"dt": 0.5'))
        with pytest.raises(FileError, match=r"dt 1\.0 -> 0\.5\. Undo the edit, or export the run again\."):
            policy.load(copy)

    def test_nothing_large_is_built_from_edited_settings(
        self, tmp_path: Path, finished: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        folder = shutil.copytree(finished, tmp_path / "run")
        text = (folder / "config.json").read_text()
        (folder / "config.json").write_text(text.replace('"hidden": 8', '"hidden": 4096'))
        monkeypatch.setattr(build, "assemble", None)
        with pytest.raises(FileError, match="hidden 8 -> 4096"):
            Run.resume(folder)


class TestDamage:
    def test_a_damaged_name_of_a_preset_is_damage(self, tmp_path: Path, finished: Path) -> None:
        """An unknown preset is one that the digest confirms, or one of a file that has no digest."""
        folder = shutil.copytree(finished, tmp_path / "run")
        path, own = folder / "config.json", (folder / "config.json").read_bytes()
        path.write_bytes(own.replace(b'"preset": "leader_f', b'"preset": "lead\\u0005r_f'))
        with pytest.raises(FileError, match=r"config\.json: damaged: .* own digest\. `uavlab resume .*` restores it"):
            policy.load(folder)
        with pytest.warns(UserWarning, match=r"damaged: .* own digest\. Going on with the settings of the checkpoint"):
            list(Run.resume(folder).train())
        assert path.read_bytes() == own
        stored = json.loads(own)
        stored["preset"] = "elsewhere_made"
        stored["sha256"] = own_digest(stored)
        path.write_text(json.dumps(stored))
        with pytest.raises(ConfigError, match="trained on 'elsewhere_made', which is not registered here"):
            policy.load(folder)

    @pytest.mark.parametrize("content", ["", "{", "[]", '{"preset": 3}', None])
    def test_a_checkpoint_holds_the_settings_too(self, tmp_path: Path, finished: Path, content: str | None) -> None:
        folder = shutil.copytree(finished, tmp_path / "run")
        path, own = folder / "config.json", (folder / "config.json").read_bytes()
        path.unlink() if content is None else path.write_text(content)
        with pytest.warns(UserWarning, match=r"config\.json: .*Going on with the settings of the checkpoint"):
            run = Run.resume(folder)
        assert path.exists() == (content is not None)  # loading changes no file
        list(run.train())
        assert path.read_bytes() == own
        assert (run.status, run.parts.not_exact_reasons) == ("complete", [])
        aside = folder / "config.json.damaged-1"
        assert (aside.read_text() if aside.exists() else None) == content

    def test_a_broken_row_stops_no_run(self, tmp_path: Path, finished: Path) -> None:
        folder = shutil.copytree(finished, tmp_path / "run")
        path = folder / "metrics.jsonl"
        path.write_text(path.read_text().replace("{", "(", 1))
        before = path.read_bytes()
        with pytest.warns(UserWarning, match=r"metrics\.jsonl:1: expected a row of metrics"):
            run = Run.resume(folder, {"updates": 10})
        assert (path.read_bytes(), run.number) == (before, 8)
        list(run.train())
        assert run.parts.not_exact_reasons == ["update 8: rows of metrics were lost or changed"]
        assert (folder / "metrics.jsonl.damaged-1").read_bytes() == before
        assert [json.loads(line)["update"] for line in path.read_text().splitlines()] == [2, 4, 6, 8, 10]

    def test_an_older_checkpoint_rewinds_rows_when_training_goes_on(self, tmp_path: Path, finished: Path) -> None:
        folder = shutil.copytree(finished, tmp_path / "run")
        shutil.rmtree(folder / "checkpoints" / "ckpt-000000000008")
        before = (folder / "metrics.jsonl").read_bytes()
        run = Run.resume(folder)
        assert (folder / "metrics.jsonl").read_bytes() == before
        list(run.train())
        assert run.digest == train_tiny().digest


class TestElsewhere:
    @pytest.fixture
    def from_a_gpu(self, tmp_path: Path) -> Path:
        """A run whose last checkpoint says that it was written on a GPU."""
        train_tiny(tmp_path / "run", updates=4, device="auto")
        path = tmp_path / "run" / "checkpoints"
        saved = checkpoint.newest(path)
        checkpoint.save(path, saved.step, saved.groups, {**saved.meta, "device": "cuda"})
        return tmp_path / "run"

    def test_another_kind_of_device_is_refused(self, from_a_gpu: Path) -> None:
        with pytest.raises(ConfigError) as refusal:
            Run.resume(from_a_gpu, {"updates": 6})
        assert str(refusal.value) == (
            f"{from_a_gpu}: trained on cuda, this process runs on cpu; random streams do not carry over. Resume it on "
            "cuda, or go on with new streams: --device cpu."
        )
        assert read_config(from_a_gpu).run.updates == 4

    def test_unless_it_is_asked_for_and_then_the_run_says_so(self, from_a_gpu: Path) -> None:
        run = Run.resume(from_a_gpu, {"updates": 6, "device": "cpu"})
        assert run.parts.not_exact_reasons == ["update 4: cuda -> cpu, new random streams"]
        list(run.train())
        assert (run.status, run.rng.salt) == ("complete", 4)
        assert run.digest != train_tiny(updates=6).digest
        again = Run.resume(from_a_gpu)  # the device that was asked for is stored
        assert (again.parts.not_exact_reasons, again.rng.salt) == (
            run.parts.not_exact_reasons,
            4,
        )  # once lifted, for good

    def test_replay_can_start_anew(self, tmp_path: Path) -> None:
        train_tiny(tmp_path / "run", updates=6)
        for path in (tmp_path / "run" / "checkpoints").glob("*/replay-*"):
            path.write_bytes(b"?")
        hint = r"At update 6 replay alone is broken: --fresh-replay goes on from it\.$"
        with pytest.raises(FileError, match=r"no intact checkpoint.*replay-000000000000-\d+\.npz has 1 bytes.*" + hint):
            Run.resume(tmp_path / "run")
        run = Run.resume(tmp_path / "run", {"updates": 8}, fresh_replay=True)
        assert (run.number, int(run.source.ring.size)) == (6, 0)
        list(run.train())
        assert (run.status, run.parts.not_exact_reasons) == ("complete", ["update 6: replay started anew"])
        assert Run.resume(tmp_path / "run").number == 8  # what it saved since is whole again

    def test_minutes_are_no_exact_target(self, tmp_path: Path) -> None:
        run = train_tiny(tmp_path / "run", minutes=5.0)
        assert run.parts.not_exact_reasons == ["minutes: how many updates fit into them depends on the machine"]
        assert json.loads((tmp_path / "run" / "run.json").read_text())["not_exact"] == run.parts.not_exact_reasons


@pytest.mark.parametrize("name", ["a", "a.b_c-1", "x" * 80])
def test_names_of_runs(name: str) -> None:
    assert run_name(name) == name


@pytest.mark.parametrize("name", ["", "x" * 81, "a/b", "..", ".a", "-a", "a b", "\0", "é", "a\n"])
def test_names_that_are_no_plain_folder_names(name: str) -> None:
    with pytest.raises(ConfigError, match=r"^--name .*: expected 1 to 80 letters"):
        run_name(name)


def test_a_folder_or_a_preset(tmp_path: Path) -> None:
    assert run_folder(str(tmp_path)) == tmp_path
    assert run_folder("runs/none") == Path("runs/none")
    with pytest.raises(ConfigError, match=r"is a preset, expected a run; train it first"):
        run_folder("leader_follower")
