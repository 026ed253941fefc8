"""What a panel shows: tables and bars by hand, marks of changes, a line of status, and text of others as text."""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import uavlab as ul
from tests.support.fixtures_config import tiny
from tests.support.hostile import HARMLESS, HOSTILE, environment, skeleton
from tests.support.live_runs import PATIENCE, QUICK, drift, step, wait_for, watch_threads
from tests.support.registries import registered_outside
from uavlab.experiment.config import configure
from uavlab.experiment.run import Run
from uavlab.experiment.run_state import Change, parse_changes
from uavlab_lab.live import pictures
from uavlab_lab.live.pictures import change_table, score_chart, speed_chart, stage_bar, status_line, whole
from uavlab_lab.live.trainer import History, Sample, Trainer
from uavlab_lab.plots.svg import MOST

MEASURED = {
    **{"how": "interleaved", "slices": 6, "warm_up_s": 12.34, "per_update": {"rows": 1.5}},
    **{"ratio": 1.234, "low": 1.1, "high": 1.4, "before": 100.0, "after": 123.4},
}
Words = Sequence[str]


@pytest.fixture(autouse=True)
def no_thread_stays() -> Iterator[None]:
    with registered_outside(), watch_threads():
        yield


def rows(*changes: Change) -> list[list[str]]:
    run: Any = SimpleNamespace(changes=list(changes))
    return change_table(run).rows


class TestTable:
    def test_of_a_measured_change(self) -> None:
        change = Change(1200, {"precision": ("fp32", "bf16"), "lr": (1e-3, 5e-4)}, measured=MEASURED)
        assert rows(change) == [
            [
                *("1", "1,200", "precision fp32 → bf16, lr 0.001 → 0.0005", "1.23 (1.10 to 1.40)"),
                "interleaved, 6 slices; warm-up 12.3 s; rows per update x 1.5",
                "100 → 123",
                "equal up to the lower precision; other updates",
            ]
        ]

    def test_a_short_warm_up_is_none(self) -> None:
        change = Change(1, {"adam": ("fused", "single")}, measured={**MEASURED, "warm_up_s": 1.0, "per_update": {}})
        assert rows(change)[0][4] == "interleaved, 6 slices"

    def test_of_others(self) -> None:
        changes = [
            Change(1, {"acting": ("loop", "batched")}, by="panel"),
            Change(2, {"worlds": (4, 8)}, by="script", undone="MemoryError: no room", measured=MEASURED),
            Change(3, {"placement": ("device", "host")}, by="resume", measured={"stopped": "another change"}),
        ]
        assert [row[3:] for row in rows(*changes)] == [
            ["-", "-", "-", "equal up to rounding"],
            ["1.23 (1.10 to 1.40)", "undone: MemoryError: no room", "100 → 123", "other updates"],
            ["-", "not measured: another change", "-", "the same bits"],
        ]

    def test_slices_and_what_the_panel_did_are_left_out(self) -> None:
        each = [Change(n, {"lr": (1, 2)}, by=by) for n, by in enumerate(("comparison", "monitor", "fallback", "panel"))]
        assert [row[:2] for row in rows(*each)] == [["1", "3"]]

    @pytest.mark.parametrize(
        "measured",
        [
            {"ratio": 1.0},
            {**MEASURED, "ratio": "x"},
            {**MEASURED, "per_update": 3},
            {**MEASURED, "low": None},
            {"a": []},
        ],
    )
    def test_a_damaged_file_leaves_dashes(self, measured: dict[str, Any]) -> None:
        [change] = parse_changes([{"update": 1, "settings": {"lr": [1, 10**400]}, "measured": measured}])
        assert rows(change)[0][3:6] == ["-", "-", "-"]


def history_of(*samples: Sample) -> Any:
    return SimpleNamespace(samples=list(samples))


def run_of(*changes: Change) -> Any:
    return SimpleNamespace(changes=list(changes))


def marks(svg: str) -> list[str]:
    """Return the numbers of marks in the drawing for a wide page."""
    wide = svg.split("class='narrow'")[0]
    return re.findall(r"<text [^>]*y='45.0'[^>]*>(\d+)</text>", wide)


class TestSpeed:
    def test_a_mark_for_each_change_since_the_history_began(self) -> None:
        samples = [Sample(n, n, 10 * n) for n in range(1, 9)]
        changes = [Change(3, by="panel"), Change(25), Change(26, by="comparison"), Change(70, by="script"), Change(999)]
        svg = speed_chart(run_of(*changes), history_of(*samples))
        assert marks(svg) == ["2", "3", "4"]  # the first one was before
        places = re.findall(r"<line x1='([\d.]+)'[^>]*stroke-dasharray", svg.split("class='narrow'")[0])
        scale = (900 - 56 - 20) / 8  # 8 s across
        assert [float(x) for x in places] == pytest.approx([56 + 3 * scale, 56 + 7 * scale, 56 + 8 * scale], abs=0.06)

    def test_a_long_curve_is_thinned_and_ends_with_the_last_point(self) -> None:
        samples = [Sample(n, n, n) for n in range(5 * MOST)]
        svg = speed_chart(run_of(), history_of(*samples))
        curve = re.findall(r"<polyline points='([^']*)'", svg)[0].split()
        assert MOST / 2 < len(curve) <= MOST + 1
        assert float(curve[-1].split(",")[0]) == 900 - 20

    @pytest.mark.parametrize("count", [1, 2])
    def test_few_samples(self, count: int) -> None:
        svg = speed_chart(run_of(), history_of(*[Sample(n, n, 5) for n in range(count)]))  # of no update
        assert len(re.findall(r"<polyline points='([^']*)'", svg)[0].split()) == count - 1


class TestStages:
    def test_shares_by_hand(self) -> None:
        first = {"time/update": 0.5, "time/acting": 0.5, "memory/resident": 100.0}
        second = {"time/update": 0.98, "time/acting": 0.01, "time/draw": 0.01, "memory/resident": 1234.5}
        bar = stage_bar(history_of(Sample(0, 0, 0), Sample(1, 1, 1, first), Sample(2, 2, 2, second)))
        assert "aria-label='time by stage: update 74%, acting 26%'" in bar.replace(".", "")
        assert "<p>Memory: resident 1,234 MiB.</p>" in bar
        widths = [float(width) for width in re.findall(r"<rect x='[\d.]+' width='([\d.]+)'", bar)]
        assert widths == pytest.approx([900 * 0.74, 900 * 0.255], abs=0.1)

    def test_small_ones_are_one(self) -> None:
        figures = {"time/update": 0.964, **{f"time/s{n}": 0.009 for n in range(4)}}
        assert "time by stage: update 96%, other 4%" in stage_bar(history_of(Sample(1, 1, 1, figures)))

    def test_the_recent_samples_count(self) -> None:
        old, new = ({"time/old": 1.0}, {"time/new": 1.0})
        samples = [Sample(n, n, n, old) for n in range(9)] + [Sample(n, n, n, new) for n in range(pictures.RECENT)]
        assert "time by stage: new 100%" in stage_bar(history_of(*samples))

    def test_without_a_reading_a_line_says_so(self) -> None:
        assert "are read while the run trains" in stage_bar(history_of(Sample(0, 0, 0)))


class TestStatus:
    def test_of_each_state(self) -> None:
        each = Trainer(Run(drift()))
        assert status_line(each) == "ready, update 0 of 40"
        step(each, 5)
        assert status_line(each) == "paused, update 5 of 40"
        each.history.samples.extend([Sample(1, 1, 5), Sample(2, 2, 1239)])
        assert status_line(each) == "paused, update 5 of 40; 1.23e+03 updates per second"
        each.start()
        each.join(PATIENCE)
        assert status_line(each) == "complete, update 40 of 40"

    def test_without_a_target(self) -> None:
        each = Trainer(Run(configure("drift_quick", {**QUICK, "updates": None, "minutes": 1.0})))
        assert status_line(each) == "ready, update 0"

    def test_of_a_change(self) -> None:
        each = Trainer(Run(drift()))
        step(each, 1)
        for settings, text in (({"precision": "bf16"}, "changing"), ({"compile": "default"}, "compiling, which takes")):
            each.order(lambda settings=settings: each.change(measure=False, **settings)).result(PATIENCE)
            assert f"; {text}" in status_line(each)
        each.change(measure=False, compile="off")  # before it was compiled
        assert status_line(each) == "paused, update 1 of 40; changing"
        step(each, 1)
        assert status_line(each) == "paused, update 2 of 40"
        each.change(adam="single")
        step(each, 1)
        assert status_line(each) == "paused, update 3 of 40; measuring the last change, slice 1 of 6"
        each.stop(PATIENCE)

    def test_a_comparison_that_ends_meanwhile_is_no_error(self) -> None:
        class Ending(SimpleNamespace):
            """A trainer whose thread ends what is read, as it is read."""

            def __getattribute__(self, name: str) -> Any:
                value = super().__getattribute__(name)
                if name in ("fresh", "comparison"):
                    setattr(self, name, () if name == "fresh" else None)
                return value

        run = Run(drift())
        run.changes.append(Change(0, {"compile": ("default", "off")}))
        about: Any = {"run": run, "state": "training", "alive": True, "history": History(run)}
        assert status_line(Ending(**about, fresh=(0,), comparison=None)).endswith("changing")  # type: ignore[arg-type]
        measured = SimpleNamespace(after=[1.0, 2.0], pairs=6)
        line = status_line(Ending(**about, fresh=(), comparison=measured))  # type: ignore[arg-type]
        assert line.endswith("measuring the last change, slice 3 of 6")


class TestCopy:
    def test_it_holds_all_without_a_script(self, tmp_path: Path) -> None:
        each = Trainer(Run(tiny(monitor=True, updates=4, evaluate_every=1), tmp_path / "run"))
        step(each, 2)
        each.change(measure=False, worlds=5)
        each.start()
        each.join(PATIENCE)
        each.history.sample(each.run, 0)
        page = whole(each)
        assert f"leader_follower, {tmp_path / 'run'}: complete, update 4 of 4" in page
        assert "worlds 4 → 5" in page
        assert page.count("class='uavlab-chart'") == 2
        assert "time by stage: " in page
        assert "<script" not in page

    def test_before_training(self) -> None:
        page = whole(Trainer(Run(drift())))
        assert "drift_quick, in memory: ready, update 0 of 40" in page
        assert "<p>No setting changed.</p>" in page

    def test_scores_have_a_mark_for_each_change(self) -> None:
        run = Run(tiny(updates=4))
        for progress in run.train():
            if progress.number == 2:
                run.change(worlds=5)
        assert marks(score_chart(run)) == ["1"]


def pages(words: Words) -> Iterator[str]:
    """Yield what a panel shows of runs with these words in their names, settings, stages, changes and errors."""
    ul.env(words[1])(environment(words))
    run = Run(configure(words[1], {**QUICK, "learner": "reinforce"}))
    for number, word in enumerate(words):
        run.folder = Path(word)
        run.changes[:] = [
            Change(0, {word: (word, [word])}, undone=word),
            Change(0, {"lr": (word, 1e-3)}, measured={"stopped": word}),
            Change(0, {"lr": (1, 2)}, measured={**MEASURED, "how": word, "per_update": {word: 2.0}}),
            Change(0, {"lr": (1, 2)}, measured={**MEASURED, "ratio": word}),
        ]
        each = Trainer(run)
        each.history.samples.append(Sample(1, 1, number, {f"time/{word}": 1.0, f"memory/{word}": 2.0}))
        yield whole(each) + status_line(each)
    stored = [{"update": 1, "settings": {word: [word, word]}, "by": "panel", "undone": word} for word in words]
    run.changes[:] = parse_changes(json.loads(json.dumps(stored)))
    yield whole(each)


def test_text_of_others_stays_text() -> None:
    elements = []
    for words in (HOSTILE, HARMLESS):
        shown = "\n".join(pages(words))
        elements.append({*skeleton(shown)})
        assert not [character for character in shown if not (character.isprintable() or character == "\n")]
    assert elements[0] <= elements[1]


@pytest.mark.parametrize("module", ["uavlab_lab.live.pictures", "uavlab_lab.plots.tables", "uavlab_lab.plots.svg"])
def test_one_that_does_not_escape_is_caught(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{module}.markup", str)
    with pytest.raises(AssertionError):
        test_text_of_others_stays_text()


def test_the_reason_of_an_undone_change_is_one_line() -> None:
    each = Trainer(Run(drift()))
    step(each, 1)

    def break_it() -> None:
        each._change({"worlds": 3}, "panel", True)
        error = ValueError(f"{HOSTILE[0]}\nmore")
        each.run.learner.update = lambda *args: (_ for _ in ()).throw(error)

    each.order(break_it).result(PATIENCE)
    step(each, 1)
    wait_for(each, "paused")
    assert change_table(each.run).rows[0][4] == f"undone: ValueError: {HOSTILE[0]}"
    assert replace(each.run.changes[0], undone="").settings == {"worlds": (2, 3)}
    each.stop(PATIENCE)
