"""Tables of transfers as lines with intervals: of policies, of baselines, and as ratios."""

from typing import Any

from uavlab_lab.plots.transfers import transfer_chart


def ends(mean: float) -> dict[str, float]:
    return {"mean": mean, "low": mean - 0.1, "high": mean + 0.2}


def table(kind: str, *scores: float, home: float = 0.8) -> dict[str, Any]:
    rows = [
        {
            kind: 2**number,
            "score": ends(score),
            "ratio": ends(score / home) if home else None,
            "plans": {"greedy": ends(0.5)},
        }
        for number, score in enumerate(scores, 1)
    ]
    return {"kind": kind, "metric": "normalized_score", "home": ends(home), "rows": rows}


TABLES = {"all": table("size", 0.8, 0.4, 0.2), "no positions": table("size", 0.6, 0.3, 0.1)}


def test_scores_of_policies_and_of_baselines() -> None:
    figure = transfer_chart(TABLES, title="A title", caption="A caption")
    assert [trace.name for trace in figure.data] == ["all", "no positions", "greedy"]
    assert [list(trace.y) for trace in figure.data] == [[0.8, 0.4, 0.2], [0.6, 0.3, 0.1], [0.5, 0.5, 0.5]]
    assert list(figure.data[0].x) == [2, 4, 8]
    assert (list(figure.data[1].error_y.arrayminus), list(figure.data[1].error_y.array)) == ([0.1] * 3, [0.2] * 3)
    assert (figure.layout.xaxis.type, figure.layout.xaxis.title.text) == ("log", "size of the team")
    assert (figure.layout.title.text, figure.layout.title.subtitle.text) == ("A title", "A caption")


def test_ratios_to_home() -> None:
    figure = transfer_chart(TABLES, ratios=True)
    assert [(trace.name, list(trace.y)) for trace in figure.data] == [
        ("all", [1.0, 0.5, 0.25]),
        ("no positions", [0.6 / 0.8, 0.3 / 0.8, 0.1 / 0.8]),
    ]
    assert figure.layout.yaxis.title.text.startswith("ratio to home, ")
    assert list(transfer_chart({"none": table("size", 0.3, home=0.0)}, ratios=True).data) == []


def test_stages_are_not_on_a_logarithmic_axis() -> None:
    layout = transfer_chart({"all": table("stage", 0.8, 0.4, 0.2)}).layout
    assert (layout.xaxis.type, layout.xaxis.title.text) == (None, "stage")
