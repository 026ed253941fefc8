"""TensorBoard shows a run under its own name, in groups, with its settings; older runs go on where they are."""

import time
from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.event_multiplexer import EventMultiplexer
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

from uavlab.storage.metrics_log import About, Recorder

ABOUT = About({"lr": 0.5, "share": True, "minutes": None, "word": "a\x1b"}, ["completion"], {"agent-steps": 256})


def read(folder: Path) -> EventAccumulator:
    board = EventAccumulator(str(folder))
    board.Reload()
    return board


def test_curves_are_in_groups(tmp_path: Path) -> None:
    board = Recorder(tmp_path, ABOUT)
    board.append(1, 1.0, {"q": 2.0})
    board.append(11, 6.0, {"q": 3.0, "eval/completion": 1.0, "x\x1b": 0.0})
    board.close()
    curves = read(tmp_path)
    rates = {"perf/updates_per_s", "perf/agent-steps_per_s", "perf/memory_MiB"}
    assert set(curves.Tags()["scalars"]) == {"train/q", "eval/completion", "train/x\\x1b", *rates}
    assert [(e.step, e.value) for e in curves.Scalars("train/q")] == [(1, 2.0), (11, 3.0)]
    assert [(e.step, e.value) for e in curves.Scalars("perf/updates_per_s")] == [(11, 2.0)]
    assert [(e.step, e.value) for e in curves.Scalars("perf/agent-steps_per_s")] == [(11, 512.0)]
    assert 10 < curves.Scalars("perf/memory_MiB")[0].value < 1e6


def test_settings_stand_beside_the_scores(tmp_path: Path) -> None:
    board = Recorder(tmp_path, ABOUT)
    board.append(1, 1.0, {"eval/completion": 0.5})
    board.close()
    parts = {}
    for tag in ("experiment", "session_start_info"):
        content = read(tmp_path).SummaryMetadata(f"_hparams_/{tag}").plugin_data.content
        parts[tag] = HParamsPluginData.FromString(content)
    values = parts["session_start_info"].session_start_info.hparams
    assert values["lr"].number_value == 0.5
    assert [values[name].string_value for name in ("share", "minutes", "word")] == ["True", "None", "a\\x1b"]
    assert [info.name.tag for info in parts["experiment"].experiment.metric_infos] == ["eval/completion"]


def test_a_run_has_its_own_name(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    board = Recorder(tmp_path / "mine", About())
    board.append(1, 1.0, {"q": 2.0})
    board.close()
    board.append(2, 2.0, {"q": 3.0})  # after an interruption
    board.close()
    runs = EventMultiplexer().AddRunsFromDirectory(str(tmp_path))
    runs.Reload()
    assert set(runs.Runs()) == {"mine"}
    assert [e.step for e in runs.Scalars("mine", "train/q")] == [1, 2]


def test_a_resumed_run_replaces_later_curves(tmp_path: Path) -> None:
    for numbers in ((1, 2, 3), (2, 4)):
        time.sleep(1 - time.time() % 1)  # files of one second would be read in the order of their numbers as text
        board = Recorder(tmp_path, About())
        for number in numbers:
            board.append(number, 1.0, {"q": 10.0 * number})
        board.close()
    assert [e.step for e in read(tmp_path).Scalars("train/q")] == [1, 2, 4]
