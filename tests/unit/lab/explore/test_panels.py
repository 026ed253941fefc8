"""What all widgets promise: text of others stays text, no event raises, controls have names, pages need no kernel."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import ipywidgets as widgets
import pytest

import uavlab as ul
from tests.support.hostile import HARMLESS, HOSTILE, environment, skeleton
from tests.support.registries import registered_outside
from tests.support.widget_events import controls, html_of, parts, play
from uavlab_lab.claims.ledger import ledger
from uavlab_lab.explore import ClaimsBrowser, PresetPicker, RunComparer, StageEditor, compare_runs, verdict
from uavlab_lab.explore import claims as claims_module
from uavlab_lab.explore.stages import preset_stages
from uavlab_lab.headless.strip_outputs import WIDGET
from uavlab_lab.lessons.landing import CURRICULUM, Landing
from uavlab_lab.widgets import Panel

Words = Sequence[str]
SEQUENCES = 50
REFUSED = ("ConfigError", "FileError")  # what input may end in; others are mistakes of ours
TYPED = (*HOSTILE, "lr=5e-4", "tau=0.5", "batch=8", "followers=3", "[0.5, 0.5]", "0.9", "gpu", "=", "x=[")


@pytest.fixture(autouse=True)
def own_registries() -> Iterator[None]:
    with registered_outside():
        yield


def train(words: Words, root: Path) -> list[Path]:
    """Train two runs whose names are these words and write them into their status; add a folder that is no run."""
    ul.env(words[1])(environment(words))
    small = {"updates": 2, "evaluate_every": 1, "evaluate_episodes": 1, "worlds": 4, "learner": "reinforce"}
    names = [word.replace("/", "").encode("unicode_escape").decode() for word in words]
    folders = []
    for seed, name in enumerate(names[5:7]):
        ul.train(words[1], settings={**small, "seed": seed, "word": words[-1 - seed]}, out=root / name, progress=False)
        status = json.loads((root / name / "run.json").read_text())
        seen = [{"symptom": "entropy_low", "update": 1, "text": words[2]}]
        status |= {"status": words[3], "reason": words[4], "not_exact": list(words), "symptoms": seen}
        status |= {"toggles": {"fell_back": dict(zip(words, words, strict=True))}, "machine": {"device": words[seed]}}
        (root / name / "run.json").write_text(json.dumps(status))
        folders.append(root / name)
    (root / names[7]).mkdir()
    (root / names[7] / "config.json").write_text(json.dumps({"preset": words[8], "values": {}}))
    return folders


def picker(words: Words, root: Path) -> Iterator[str]:
    ul.env(words[1])(environment(words))
    panel = PresetPicker(words[1])
    yield html_of(panel)
    for word in words:
        panel.entry.value = f"{word}=1"
        yield html_of(panel)
    panel.entry.value = f"word={json.dumps(words[-1])}"
    yield html_of(panel)
    panel.fields["word"].value = "["
    yield html_of(panel)


def comparer(words: Words, root: Path) -> Iterator[str]:
    train(words, root)
    panel = RunComparer(root)
    panel.runs.index = (0, 1)
    panel.compare.click()
    assert "<polyline" in panel.shown.value
    yield html_of(panel)
    assert all(label.isprintable() for label, _ in panel.runs.options)


def comparison(words: Words, root: Path) -> Iterator[str]:
    shown = compare_runs(*train(words, root), root / "none")
    yield shown._repr_html_()
    assert all(line.isprintable() for line in repr(shown).split("\n"))


def judged(words: Words, root: Path) -> Iterator[str]:
    shown = verdict(train(words, root)[0], episodes=1)
    yield shown._repr_html_()
    assert all(line.isprintable() for line in repr(shown).split("\n"))


def claims(words: Words, root: Path) -> Iterator[str]:
    names = ("claim", "system", "technique", "setting", "metric", "source", "wording", "note")
    with pytest.MonkeyPatch.context() as patch:
        first = ledger()[0]
        rows = [replace(first, **dict.fromkeys(names, word)) for word in words]
        patch.setattr(claims_module, "ledger", lambda: rows)
        panel = ClaimsBrowser()
    yield html_of(panel)
    for word in words:
        panel.text.value, panel.filters["system"].value = word, word
        yield html_of(panel)


def stages(words: Words, root: Path) -> Iterator[str]:
    near, *others = CURRICULUM["stages"]
    panel = StageEditor(
        Landing(), {**CURRICULUM, "stages": [{**near, **dict(zip(words, words, strict=True))}, *others]}
    )
    yield html_of(panel)
    for word in words:
        panel.fields[1]["far"].value = word
        yield html_of(panel)


RENDERERS = (picker, comparer, comparison, judged, claims, stages)


@pytest.mark.parametrize("render", RENDERERS, ids=lambda render: render.__name__)
def test_text_of_others_stays_text(render: Callable[[Words, Path], Iterator[str]], tmp_path: Path) -> None:
    """Pages of strings that try to run have no tag or attribute that those of harmless ones do not have."""
    elements = []
    for name, words in {"hostile": HOSTILE, "harmless": HARMLESS}.items():
        (tmp_path / name).mkdir()
        pages = "\n".join(render(words, tmp_path / name))
        elements.append({*skeleton(pages)})
        assert not [character for character in pages if not (character.isprintable() or character == "\n")]
    assert elements[0] <= elements[1]


@pytest.mark.parametrize(
    ("module", "render"),
    [
        ("uavlab_lab.widgets", picker),
        ("uavlab_lab.plots.tables", picker),
        ("uavlab_lab.widgets", comparer),
        ("uavlab_lab.plots.svg", comparer),
        ("uavlab_lab.plots.tables", comparison),
        ("uavlab_lab.widgets", judged),
        ("uavlab_lab.plots.tables", claims),
        ("uavlab_lab.explore.stages", stages),
        ("uavlab_lab.widgets", stages),
    ],
)
def test_a_widget_that_does_not_escape_is_caught(
    module: str, render: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{module}.markup", str)
    with pytest.raises(AssertionError):
        test_text_of_others_stays_text(render, tmp_path)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with registered_outside():
        train(HARMLESS, root := tmp_path_factory.mktemp("runs"))
    return root


PANELS: dict[str, Callable[[Path], Any]] = {
    "PresetPicker": lambda root: PresetPicker(),
    "RunComparer": lambda root: RunComparer(root),
    "ClaimsBrowser": lambda root: ClaimsBrowser(),
    "StageEditor": lambda root: StageEditor(*preset_stages("leader_follower_curriculum")),
}


@pytest.mark.parametrize("name", PANELS)
class TestPanels:
    def test_no_event_raises_and_the_status_is_a_line(self, name: str, root: Path) -> None:
        ul.env(HARMLESS[1])(environment(HARMLESS))  # that of the runs
        panel = PANELS[name](root)
        for seed in range(SEQUENCES):
            play(panel, seed, TYPED)
            skeleton(html_of(panel))
            assert panel.status.value.startswith(("<span role='status'>", *(f"<b role='alert'>{e}:" for e in REFUSED)))

    def test_each_control_has_a_name_and_a_tooltip(self, name: str, root: Path) -> None:
        for control in controls(PANELS[name](root)):
            assert control.tooltip
            assert control.description or name == "StageEditor"  # whose columns have heads

    def test_it_reads_without_a_kernel(self, name: str, root: Path) -> None:
        panel = PANELS[name](root)
        bundle = panel._repr_mimebundle_()
        assert {*bundle} == {WIDGET, "text/plain"}
        assert bundle["text/plain"] == panel.label
        assert not any(isinstance(each, widgets.Output) for each in parts(panel))


def test_an_exception_outside_the_guard_is_caught() -> None:
    text, status = widgets.Text(), widgets.HTML()

    def fail(change: Any) -> None:
        raise ValueError(change["new"])

    text.observe(fail, "value")
    with pytest.raises(ValueError, match=r"."):
        play(Panel([text, status], "broken"), 0, TYPED)


def test_events_change_what_is_shown() -> None:
    panel = ClaimsBrowser()
    before = html_of(panel)
    play(panel, 0, TYPED)
    assert html_of(panel) != before


def test_a_mistake_inside_the_guard_is_caught(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims_module, "matches", lambda query, texts: query.lover() in texts)
    with pytest.raises(AssertionError):
        TestPanels().test_no_event_raises_and_the_status_is_a_line("ClaimsBrowser", root)
