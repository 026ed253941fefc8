"""Text of others stays text, in HTML and on a terminal."""

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import uavlab as ul
from tests.support.hostile import HARMLESS, HOSTILE, environment, skeleton
from tests.support.registries import registered_outside
from uavlab_lab.explore import compare_runs, verdict

Words = Sequence[str]


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


def comparison(words: Words, root: Path) -> Iterator[str]:
    shown = compare_runs(*train(words, root), root / "none")
    yield shown._repr_html_()
    assert all(line.isprintable() for line in repr(shown).split("\n"))


def judged(words: Words, root: Path) -> Iterator[str]:
    shown = verdict(train(words, root)[0], episodes=1)
    yield shown._repr_html_()
    assert all(line.isprintable() for line in repr(shown).split("\n"))


RENDERERS = (comparison, judged)


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
        ("uavlab_lab.plots.tables", comparison),
        ("uavlab_lab.widgets", judged),
    ],
)
def test_what_does_not_escape_is_caught(
    module: str, render: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{module}.markup", str)
    with pytest.raises(AssertionError):
        test_text_of_others_stays_text(render, tmp_path)
