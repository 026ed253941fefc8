"""Draw the picture of the README: a team past obstacles, a mapping mission, and a flight log, read by trained networks.

``python -m tools.hero [FILE]`` writes ``figures/hero.webp`` from the policies in ``figures``, in about a minute.
"""

import dataclasses
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import plotly.graph_objects as go

import uavlab as ul
from uavlab.telemetry.predict import Prediction, predict_log
from uavlab_lab import films
from uavlab_lab.lessons.telemetry import draw_prediction, write_flight
from uavlab_lab.plots.flight import stills
from uavlab_lab.plots.style import short

FIGURES = Path(__file__).parents[1] / "figures"
SIZE = (894, 500)  # px; GitHub shows a README this wide
LETTERS, HEADING = 22, 28  # px, so that a phone, 2.5 times as narrow, still shows words
OBSTACLES, FLIGHT = 4, 45  # the team was trained with one obstacle; seed of a flight that passes near three
ACROSS, DOWN = (130, 640), (600, 90)  # where this flight takes place (px of the world)
MISSION = 9  # seed
LOG, STRIDE, READS = 2_000_000, 10, 40  # seed of the log, rows between predictions, frames in which it is read
COLUMNS = ("wind_north", "payload")
PAUSES, LAST = {"team": 110, "mission": 550, "log": 90}, 1800  # ms of a frame, and of the last one of each part

Frames = Sequence[go.Figure]


def team() -> Frames:
    """Draw a flight past obstacles."""
    trained = ul.load(FIGURES / "tour")
    env = dataclasses.replace(trained.config.evaluation, obstacles=OBSTACLES)
    figure = _beside_legend(ul.fly(trained, env=env, seed=FLIGHT))
    figure.update_xaxes(range=ACROSS).update_yaxes(range=DOWN)
    return [_large(still, f"A team in formation: {figure.layout.title.text.lower()}") for still in stills(figure)]


def mission() -> Frames:
    """Draw a mission, with the measurements so far."""
    figure = _beside_legend(ul.fly(FIGURES / "mapping", seed=MISSION))
    figure.update_traces(showscale=False, selector={"type": "heatmap"})
    moments, heading = stills(figure), "Four UAVs map targets: measurement {} of {}"
    return [_large(still, heading.format(number, len(moments))) for number, still in enumerate(moments, 1)]


def log() -> Frames:
    """Draw what the network predicts while it reads a log, and the truth."""
    trained = ul.load(FIGURES / "telemetry")
    task: Any = trained.config.env
    with tempfile.TemporaryDirectory() as folder:
        path = write_flight(Path(folder), LOG)
        whole = predict_log(trained.batched_policy(task, 0), task, path, stride=STRIDE)  # type: ignore[arg-type]
    ends = [len(whole.time) * number // READS for number in range(1, READS + 1)]
    frames = [draw_prediction(_first(whole, end), COLUMNS) for end in ends]
    full, span = frames[-1], [whole.time[0].item(), whole.time[-1].item()]
    for figure in frames:
        for column in (1, 2):
            ys = [y for trace in full.select_traces(col=column, row=1) for y in trace.y]
            figure.update_yaxes(range=short((min(ys), max(ys))), col=column)
        figure.update_xaxes(range=short(span))
        figure.update_annotations(font_size=LETTERS)
    return [_large(figure, "A network reads a flight log: wind and payload", above=110, below=100) for figure in frames]


def _first(whole: Prediction, end: int) -> Prediction:
    """Return the first predictions of a flight."""
    return dataclasses.replace(whole, **{name: getattr(whole, name)[:end] for name in ("time", "values", "truth")})


def _beside_legend(figure: go.Figure) -> go.Figure:
    """Return a picture of a place without scales, left of its legend."""
    figure.update_xaxes(title="", showticklabels=False, domain=[0, 0.6])
    figure.update_yaxes(title="", showticklabels=False)
    place = {"x": 0.63, "xref": "paper", "xanchor": "left", "y": 0.98, "yref": "paper", "yanchor": "top"}
    return figure.update_layout(legend={"orientation": "v", **place})


def _large(figure: go.Figure, heading: str, above: int = 64, below: int = 16) -> go.Figure:
    """Return a figure with letters that a phone shows, and a heading."""
    figure.update_layout(title={"text": heading, "subtitle": None, "font": {"size": HEADING}})
    figure.update_layout(font={"size": LETTERS}, legend={"font": {"size": LETTERS}}, height=SIZE[1])
    figure.update_layout(margin={"t": above, "b": below, "l": 10, "r": 10})
    figure.update_xaxes(title_font_size=LETTERS)
    return figure.update_traces(textfont_size=LETTERS - 4, selector={"mode": "markers+text"})


def main(path: Path) -> None:
    parts = {"team": team(), "mission": mission(), "log": log()}
    pictures = films.draw([figure for figures in parts.values() for figure in figures], *SIZE)
    pauses = [pause for name, own in parts.items() for pause in [*[PAUSES[name]] * (len(own) - 1), LAST]]
    first, *rest = pictures
    quality = {"quality": 75, "alpha_quality": 75}
    first.save(path, save_all=True, append_images=rest, duration=pauses, loop=0, disposal=2, **quality)
    print(f"{path}: {len(pictures)} frames, {path.stat().st_size / 2**20:.2f} MiB")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else FIGURES / "hero.webp")
