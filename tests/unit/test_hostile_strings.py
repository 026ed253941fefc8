"""Strings that try to run pass through every renderer: a page of them has the elements of a page of harmless ones."""

import contextlib
import csv
import dataclasses
import io
import json
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ipywidgets
import nbformat
import plotly.graph_objects as go
import pytest
from nbformat.v4 import new_output
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import uavlab as ul
from tests.support.cli_runner import uavlab
from tests.support.hostile import HARMLESS, HOSTILE, environment, figure_markup, printable, skeleton
from tests.support.registries import registered_outside
from tests.support.tiny_notebook import write_notebook
from uavlab.core.text import markup
from uavlab.core.types import Group, Metric
from uavlab.experiment.diagnostics import Finding
from uavlab.experiment.run import Run
from uavlab.experiment.scores import Scores
from uavlab.runtime.toggles import TOGGLES, Toggles
from uavlab.storage.metrics_log import About, Recorder
from uavlab.sweeps.spec import Sweep
from uavlab.sweeps.table import SweepTable
from uavlab_lab import films, live_run, page, widgets
from uavlab_lab.explore import compare_runs, verdict
from uavlab_lab.headless import report as notebook_page
from uavlab_lab.headless.strip_outputs import FIGURE
from uavlab_lab.measure.profile_run import Profile
from uavlab_lab.plots import beside, charts, flight, scenes, style, tables, views
from uavlab_lab.plots.charts import Table
from uavlab_lab.plots.svg import line_chart
from uavlab_lab.report import write_report
from uavlab_lab.run_files import Scoring
from uavlab_lab.sweep_report import write_sweep_report

Words = Sequence[str]
SMALL = {"updates": 4, "evaluate_every": 2, "evaluate_episodes": 2, "log_every": 2, "worlds": 4, "learner": "reinforce"}


@pytest.fixture(autouse=True)
def own_registries() -> Iterator[None]:
    with registered_outside():
        yield


def train(words: Words, folder: Path, **changes: Any) -> Path:
    """Train a run whose names are these words, and write them into its status too."""
    ul.env(words[1])(environment(words))
    run = folder / words[5].replace("/", "").encode("unicode_escape").decode()
    ul.train(words[1], settings={**SMALL, "word": words[-1], **changes}, out=run, progress=False)
    status = json.loads((run / "run.json").read_text())
    status |= {"command": words[0], "reason": words[2], "not_exact": list(words), "status": words[3]}
    status |= {"toggles": {"fell_back": dict(zip(words, words, strict=True))}}
    status |= {"machine": dict(zip((*words, "device"), (*words, words[4]), strict=True))}
    (run / "run.json").write_text(json.dumps(status))
    return run


def report(words: Words, folder: Path) -> str:
    run = train(words, folder)
    write_report([run], folder / "report.html", Scoring(2))
    return (folder / "report.html").read_text(encoding="utf-8")


def report_of_seeds(words: Words, folder: Path) -> str:
    runs = [train(words, folder / str(number), seed=seed) for number, seed in enumerate((0, 1, 2, 2))]
    write_report(runs, folder / "report.html", Scoring(2))
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert "and 1 more" in page
    assert "seeds in common" in page
    return page


def findings(words: Words, folder: Path) -> str:
    runs = [train(words, folder / str(seed), seed=seed) for seed in (0, 1)]
    found = [compare_runs(*runs, folder / "none"), verdict(runs[0])]
    assert all(printable(repr(each)) for each in found)
    return "".join(each._repr_html_() for each in found)


def flight_page(words: Words, folder: Path) -> str:
    env: Any = environment(words)()
    figure = scenes.observations(env, [env.initial(ul.Streams([0]).uniform("start", 1, 2)[0])] * 3)
    films.write(figure, folder / "flight.html")
    return (folder / "flight.html").read_text(encoding="utf-8")


def executed_notebook(words: Words, folder: Path) -> str:
    path = write_notebook(folder, "pass", "pass")
    nb = nbformat.read(path, as_version=4)
    table = Table([*words], [[*words]])
    bundle = {"text/html": table._repr_html_(), "text/plain": repr(table)}
    rows = [{"x": 1.0, "y": 2.0, "who": word} for word in words]
    figure = charts.lines(rows, "x", "y", by="who", title=words[0], caption=words[1])
    drawn = new_output("display_data", {FIGURE: json.loads(figure.to_json())})
    printed = new_output("stream", name="stdout", text="\n".join(words))
    error = new_output("error", ename="ValueError", evalue=words[0], traceback=[markup(word) for word in words])
    nb.cells[0].outputs = [new_output("display_data", bundle), printed, drawn]
    nb.cells[1].outputs = [error]
    nbformat.write(nb, path)
    notebook_page.report(path, folder / "page.html")
    return (folder / "page.html").read_text(encoding="utf-8")


def status_lines(words: Words, folder: Path) -> str:
    status = ipywidgets.HTML()
    lines = []
    for word in words:
        widgets.write_status(status, word)
        lines.append(status.value)
        with widgets.guard(status):
            raise ValueError(word)
        lines.append(status.value)
    return "".join(lines)


def live_curve(words: Words, folder: Path) -> str:
    env = environment(words)()
    rows = [{"update": n, **{f"eval/{word}": float(n) for word in words}} for n in range(3)]
    run: Any = SimpleNamespace(
        config=SimpleNamespace(env=env, run=SimpleNamespace(updates=2)), recorder=SimpleNamespace(rows=rows)
    )
    return live_run.draw(run) + line_chart({word: [(0, 1)] for word in words}, words[0], words[1], 1)


def sweep_table(words: Words, folder: Path) -> SweepTable:
    rows = [
        {"number": n, "trial": word, "preset": preset, "settings": {word: word}, "seed": n, "reason": word}
        | ({"status": word} if n == 1 else {"status": "complete", "score": n / 10, "digest": word, "updates": 1})
        for preset in words[:2]
        for n, word in enumerate(words)
    ]
    return SweepTable(
        folder, Sweep([*words[:2]], dict(zip(words, words, strict=True)), search={"trials": 1}), tuple(rows)
    )


def sweep_page(words: Words, folder: Path) -> str:
    return write_sweep_report(sweep_table(words, folder)).read_text(encoding="utf-8")


def with_cards(words: Words, folder: Path) -> list[Any]:
    """Return an object of each kind that shows itself, with the words wherever they can stand."""
    named = dict(zip(words, words, strict=True))
    run = Run.resume(train(words, folder))
    run.status, run.digest, run.parts.not_exact_reasons = words[3], words[2], [*words]
    run.symptoms = [Finding("loss_grows", 1, word) for word in words]
    run.rt.fell_back.update(named)
    run.parts.machine = {"device": words[4], "threads": words[5]}
    config = dataclasses.replace(run.config, chosen=named, values={**run.config.values, "word": words[6]})
    spec = dataclasses.replace(run.config.env.spec, parts=tuple(Group(word, 1, obs=1) for word in words))
    row = {"mean": 0.5, "low": 0.0, "high": 1.0}
    stages = [{"name": word, "mean_ms": 1.0, "p95_ms": 2.0, "share": 0.5} for word in words]
    gains = {"predicted": 1.0, "measured": 1.0, "low": 1.0, "high": 1.0, "first_call_s": 0.0}
    rates = {f"{kind}_per_s{end}": 1.0 for kind in ("flop", "bytes") for end in ("", "_ceiling")}
    profile = Profile(
        {"preset": words[0], "kind": words[1], "verdict": words[2], "trace": words[3], "machine": run.parts.machine},
        memory=dict.fromkeys(words, 1),
        update={"ms": 1.0, "operators": 2, "launch_us": 1.0, **rates},
        stages=stages,
        candidates=[{"toggle": word, **gains} for word in words],
        operators=[{"operator": word, "calls": 1.0, "cpu_ms": 1.0, "share": 1.0} for word in words],
    )
    return [
        *(run, config, run.trained(), dataclasses.replace(run.policy(), spec=spec), profile),
        dataclasses.replace(config, preset=words[7]),
        Toggles(**dict(zip(TOGGLES, words, strict=False))),
        Scores(dict.fromkeys(words, row), named, words[1], words[2]),  # type: ignore[arg-type]
        sweep_table(words, folder),
    ]


def cards(words: Words, folder: Path) -> str:
    return "".join(each._repr_html_() for each in with_cards(words, folder) if hasattr(each, "_repr_html_"))


RENDERERS = (
    *(report, report_of_seeds, findings, flight_page, executed_notebook),
    *(status_lines, live_curve, cards, sweep_page),
)


def draw(words: Words) -> list[go.Figure]:
    """Return a figure of each kind, with the words wherever a name can stand."""
    rows = [{"setting": word, "over_first": 1.0 + n, "low": 0.9, "high": 2.0 + n} for n, word in enumerate(words)]
    named = {"title": words[0], "caption": words[1]}
    stage = [{"name": word, "share": 0.01, "flops": 1e9, "bytes": 1e8, "ms": 1.0} for word in words]
    spans = [{"lane": word, "name": word, "start": 0.0, "end": 1.0} for word in words]
    curve = [{"update": n, "each": {words[2]: [0.1 * n]}} for n in range(3)]
    points = [{"x": 1.0 + n, "y": 2.0, "who": word} for n, word in enumerate(words)]
    moving = [[go.Scatter(x=[n], y=[n])] for n in range(2)]
    film = style.blank(words[3])
    film.add_traces(moving[0])
    flight.add_frames(film, moving, ["0", "1"])
    learning = [{"setting": word, "curve": curve, "first_update_s": 0.0} for word in words]
    metrics = tuple(Metric(word, "mean", word) for word in words)
    env = SimpleNamespace(metrics=metrics, score=dict.fromkeys(words, 1.0))
    scored = [{"update": 1, **{f"eval/{word}": 0.5 for word in words}}]
    joined = (" ".join(words), "another")
    chosen = views.views(lambda show: charts.bars(rows[:1], title=show), show=joined)
    return [
        charts.bars(rows, axis=words[2], **named),
        charts.bars(rows, by="setting", **named),
        charts.lines(points, "x", "y", by="who", x_axis=words[2], y_axis=words[3], **named),
        charts.stages(dict.fromkeys(words, stage[:1]), axis=words[2], **named),
        charts.stages({words[0]: stage}, **named),
        charts.roofline(stage, 1e12, 1e11, **named),
        charts.learning_curves(learning, words[2], **named),
        charts.against_theory([1], [1], [1], x_axis=words[2], **named),
        charts.timeline(spans, **named),
        chosen,
        *views.still_views(chosen),
        beside.beside(dict.fromkeys(joined, film), words[0]),
        flight.freeze(film),
        live_run.training_curves(env, scored, words[0]),
    ]


@pytest.mark.parametrize("render", RENDERERS, ids=lambda render: render.__name__)
def test_a_page_has_no_element_of_theirs(render: Callable[[Words, Path], str], tmp_path: Path) -> None:
    for name in ("hostile", "plain"):
        (tmp_path / name).mkdir()
    assert skeleton(render(HOSTILE, tmp_path / "hostile")) == skeleton(render(HARMLESS, tmp_path / "plain"))


def test_a_figure_takes_them_for_text() -> None:
    for hostile, harmless in zip(draw(HOSTILE), draw(HARMLESS), strict=True):
        assert figure_markup(hostile) == figure_markup(harmless)


def unescaped(render: Callable[[Words, Path], str], folder: Path) -> bool:
    """Return whether the test above refuses a renderer."""
    with contextlib.suppress(AssertionError):
        test_a_page_has_no_element_of_theirs(render, folder)
        return False
    return True


@pytest.mark.parametrize(
    ("module", "name", "render"),
    [
        (page, "markup", report),
        (page, "markup", report_of_seeds),
        (tables, "markup", report),
        (widgets, "markup", status_lines),
        ("uavlab_lab.plots.svg", "markup", live_curve),
        (tables, "markup", executed_notebook),
        (widgets, "markup", findings),
        ("uavlab.core.cards", "markup", cards),
        (page, "markup", sweep_page),
        (tables, "markup", sweep_page),
    ],
)
def test_a_renderer_that_does_not_escape_is_caught(
    module: Any, name: str, render: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = module if isinstance(module, str) else module.__name__
    monkeypatch.setattr(f"{where}.{name}", str)
    assert unescaped(render, tmp_path)


@pytest.mark.parametrize(
    ("module", "name"),
    [(style, "plain"), (charts, "plain"), (charts, "words"), (views, "words"), (beside, "plain"), (live_run, "plain")],
)
def test_a_figure_that_does_not_escape_is_caught(module: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, name, str)
    pairs = zip(draw(HOSTILE), draw(HARMLESS), strict=True)
    assert any(figure_markup(hostile) != figure_markup(harmless) for hostile, harmless in pairs)


class TestTerminal:
    def test_commands(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        run = train(HOSTILE, tmp_path)
        for words in (
            ["evaluate", run, "--episodes", "2"],
            ["report", run, "--episodes", "2"],
            ["settings", HOSTILE[1]],
        ):
            ended = uavlab(*words)
            assert ended.code == 0
            assert printable(ended.out + ended.err)

    def test_columns_of_a_log(self, tmp_path: Path) -> None:
        with (tmp_path / "log.csv").open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([["time", *HOSTILE], *([n, *[n] * len(HOSTILE)] for n in range(5))])
        ended = uavlab("flights", "describe", tmp_path / "log.csv")
        assert printable(ended.out + ended.err)
        assert ended.code in (0, 3)

    @pytest.mark.parametrize("word", HOSTILE)
    def test_an_error(self, word: str, tmp_path: Path) -> None:
        for words in (["train", word], ["report", word], ["train", "drift", "--set", f"{word}=1"]):
            ended = uavlab(*words)
            assert ended.code in (2, 3)
            assert printable(ended.out + ended.err)

    def test_scores_and_tables(self) -> None:
        rows = {word: {"mean": 0.5, "low": 0.0, "high": 1.0} for word in HOSTILE}
        assert printable(str(Scores(rows, {word: word for word in HOSTILE}, "3 episodes", None)))  # type: ignore[arg-type]
        assert printable(repr(Table(HOSTILE, [HOSTILE])))

    def test_objects(self, tmp_path: Path) -> None:
        for each in with_cards(HOSTILE, tmp_path):
            assert printable(repr(each)), type(each)

    def test_the_progress_bar(self, tmp_path: Path) -> None:
        ul.env(HOSTILE[1])(environment(HOSTILE))
        with contextlib.redirect_stderr(io.StringIO()) as err, contextlib.redirect_stdout(io.StringIO()) as out:
            ul.train(HOSTILE[1], settings=SMALL)
        assert printable((err.getvalue() + out.getvalue()).replace("\r", "\n"))


def test_tensorboard_shows_them_as_text(tmp_path: Path) -> None:
    board = Recorder(tmp_path, About({f"s{n}": word for n, word in enumerate(HOSTILE)}, HOSTILE))
    with warnings.catch_warnings():
        board.append(1, 1.0, dict.fromkeys(HOSTILE, 0.0))
    board.close()
    read = EventAccumulator(str(tmp_path))
    read.Reload()
    assert all(map(printable, read.Tags()["scalars"]))
    assert len(read.Tags()["scalars"]) == len(HOSTILE) + 1  # and the memory
    content = read.SummaryMetadata("_hparams_/session_start_info").plugin_data.content.decode(errors="replace")
    assert not any(mark in content for mark in ("\x1b", "\u202e", "\x9b"))


def test_there_are_twenty() -> None:
    assert len(set(HOSTILE)) >= 20
