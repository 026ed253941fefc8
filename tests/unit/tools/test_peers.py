"""The comparison takes turns, compares equal work only, and says what to install; the programs themselves are faked."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from tools import tables
from tools.peers import __main__ as tool
from tools.peers import worker
from tools.tables import peers
from tools.tables import records as parts
from uavlab.core.errors import ConfigError, ResourceError
from uavlab.profiling.timing import ENOUGH, WARM_UP

OURS, EACH, OURS_ONE, ONE = tool.PROGRAMS
COUNTS = {
    "mappo": {"actor": 10, "critic": 30},
    "mappo, one critic": {"actor": 10, "critic": 11},
    "masac": {"actor": 10, "critic": 60},
}
FACTS = {
    "versions": {"torch": "2.13.0+cpu"},
    "threads": 1,
    "observations": 14,
    "parameters": COUNTS,
    "steps": {"mappo update": {"actor": 20, "critic": 20}},
}
FAKE = """
import json, sys
print(json.dumps({"sizes": json.loads(sys.argv[1])}), flush=True)
for line in sys.stdin:
    name = json.loads(line)
    if name == "dies":
        sys.exit("first line\\nno such call")
    print(len(name), flush=True)
"""


def facts_with(**values: Any) -> dict[str, dict[str, Any]]:
    """Return equal facts of both programs, but for some of BenchMARL."""
    return {"uavlab": FACTS, "benchmarl": {**FACTS, **values}}


def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Write a record of made-up seconds, and let the tables read it."""
    seconds = {name: [value] * ENOUGH for name, value in zip(tool.PROGRAMS, (0.16, 0.32, 0.10, 0.08), strict=True)}
    rows = tool.rows({(piece, name): seconds[name] for piece in tool.PIECES for name in tool.PROGRAMS})
    result = {
        "command": "python -m tools.peers --rounds 6 --out figures/records/peers.json",
        "rounds": ENOUGH,
        "machine": {"cpu": "Here", "load": 0.5, "dirty": False},
        "sizes": {**tool.SIZES, "steps_per_iteration_of_masac": worker.STEPS},
        "programs": {"128": facts_with()},
        "differences": ["One.", "Two."],
        "rows": [{"hidden": 128, **row} for row in rows],
    }
    (tmp_path / "peers.json").write_text(json.dumps(result), encoding="utf-8")
    monkeypatch.setattr(parts, "RECORDS", tmp_path)
    return result


class TestTurns:
    def test_every_round_makes_each_call_once_and_every_other_one_backwards(self) -> None:
        result = list(tool.turns(2))
        assert len(result) == (WARM_UP + 2) * len(tool.PIECES) * len(tool.PROGRAMS)
        first = [(piece, program) for number, piece, program in result if number == 0]
        second = [(piece, program) for number, piece, program in result if number == 1]
        own = [(tool.PIECES[0], name) for name in (OURS, EACH, OURS_ONE, ONE)]
        assert first[:5] == [*own, (tool.PIECES[1], OURS)]
        assert second[:4] == own[::-1]
        assert sorted(first) == sorted(second)

    def test_the_first_rounds_do_not_count(self) -> None:
        clock = iter(range(1000))
        seconds = tool.measure(lambda program, piece: float(next(clock)), 2)
        calls = len(tool.PIECES) * len(tool.PROGRAMS)
        assert seconds[tool.PIECES[0], OURS] == [WARM_UP * calls, (WARM_UP + 1) * calls + 3]
        assert {len(each) for each in seconds.values()} == {2}


class TestRows:
    def test_ratios_are_of_the_same_round(self) -> None:
        """Each round twice as slow as the one before: ratios 2, 2, 4, 4, 4, 4 of equal rounds, median 4."""
        ours = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0]
        theirs = [2.0, 4.0, 16.0, 32.0, 64.0, 128.0]
        seconds = {(tool.PIECES[0], name): theirs if name == EACH else ours for name in tool.PROGRAMS}
        seconds[tool.PIECES[0], OURS_ONE] = [x / 3 for x in ours]  # with one critic, to be compared with its like
        own, each, own_one, one = tool.rows(seconds)
        assert (own["ms"], each["ms"]) == (8000.0, 32000.0)
        assert (each["over_uavlab"], each["low"], each["high"]) == (4.0, 2.0, 4.0)
        assert [own[key] for key in ("over_uavlab", "low", "high")] == [1.0, 1.0, 1.0]
        assert (own_one["over_uavlab"], one["over_uavlab"]) == (1.0, 3.0)

    def test_few_rounds_have_their_extremes(self) -> None:
        seconds = {("mappo update", OURS): [1.0, 1.0, 1.0], ("mappo update", EACH): [3.0, 1.0, 2.0]}
        row = tool.rows(seconds)[1]
        assert (row["over_uavlab"], row["low"], row["high"]) == (2.0, 1.0, 3.0)

    def test_a_call_of_several_updates_counts_each(self) -> None:
        seconds = {(piece, OURS): [1.6] for piece in ("masac update", "masac iteration", "mappo update")}
        assert [row["ms"] for row in tool.rows(seconds)] == [1600 / worker.STEPS, 1600.0, 1600.0]


class TestSameWork:
    def test_equal_facts_pass(self) -> None:
        tool.require_same(facts_with())

    @pytest.mark.parametrize(
        "values",
        [
            {"parameters": {**COUNTS, "mappo": {"actor": 10, "critic": 31}}},
            {"parameters": {**COUNTS, "mappo, one critic": {"actor": 10, "critic": 10}}},
            {"parameters": {"mappo": COUNTS["mappo"]}},
            {"steps": {"mappo update": {"actor": 20, "critic": 19}}},
            {"observations": 18},
            {"threads": 2},
            {"versions": {"torch": "2.12.0"}},
        ],
    )
    def test_other_work_is_refused(self, values: dict[str, Any]) -> None:
        with pytest.raises(
            ConfigError, match=rf"peers: {'torch' if 'versions' in values else next(iter(values))}: got"
        ):
            tool.require_same(facts_with(**values))

    def test_counts_are_those_that_a_call_adds(self) -> None:
        counts = {"a": 5, "b": 7}

        def call() -> float:
            counts["a"] += 20
            return 0.1

        assert worker.count_steps({"mappo update": call}, lambda name: dict(counts)) == {
            "mappo update": {"a": 20, "b": 0}
        }


class TestEnvironment:
    def test_a_missing_one_is_refused_with_the_next_step(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        with pytest.raises(SystemExit) as ended:
            tool.main(["--python", str(tmp_path / "python"), "--out", str(tmp_path / "peers.json")])
        message = capsys.readouterr().err
        assert ended.value.code == 2
        assert f"no Python at {tmp_path / 'python'}" in message
        assert (
            "python3.11 -m venv build/peers && build/peers/bin/pip install -r tools/peers/requirements.txt" in message
        )
        assert not (tmp_path / "peers.json").exists()

    def test_other_versions_are_refused(self) -> None:
        pinned = "# a comment\ntorch==2.13.0\nbenchmarl==1.5.2\n"
        tool.require_pinned({"torch": "2.13.0+cpu", "benchmarl": "1.5.2", "vmas": "9"}, pinned)
        with pytest.raises(ConfigError, match=r"got benchmarl 1\.5\.1; expected .* run in "):
            tool.require_pinned({"torch": "2.13.0+cpu", "benchmarl": "1.5.1"}, pinned)

    def test_torch_and_numpy_are_those_of_this_package(self) -> None:
        """The worker names all pinned packages, so each one is compared."""
        constraints, pinned = (
            dict(re.findall(r"^([\w-]+)==(\S+?)(?: ;.*|;.*)?$", path.read_text(encoding="utf-8"), re.MULTILINE))
            for path in (tool.ROOT / "constraints.txt", tool.REQUIREMENTS)
        )
        assert {name: pinned[name] for name in ("torch", "numpy")} == {
            name: constraints[name] for name in ("torch", "numpy")
        }
        source = (tool.REQUIREMENTS.parent / "benchmarl_worker.py").read_text(encoding="utf-8")
        assert set(pinned) == set(re.findall(r'"(\w+)"', source.split("PACKAGES = ")[1].partition("\n")[0]))


class TestWorker:
    @pytest.fixture
    def fake(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
        package = tmp_path / "tools" / "peers"
        package.mkdir(parents=True)
        (package / "fake_worker.py").write_text(FAKE)
        monkeypatch.setattr(tool, "ROOT", tmp_path)
        return str(tmp_path)

    def test_answers_in_turn(self, fake: str) -> None:
        one = tool.Worker("fake", Path(sys.executable), fake, {"hidden": 3})
        assert one.facts == {"sizes": {"hidden": 3}}
        assert [one.ask("four"), one.ask("five5")] == [4, 5]
        one.close()
        assert one.process.returncode == 0

    def test_its_end_is_an_error_with_its_last_line(self, fake: str) -> None:
        one = tool.Worker("fake", Path(sys.executable), fake, {})
        with pytest.raises(ResourceError, match="the worker of fake ended with 1: no such call"):
            one.ask("dies")
        one.close()

    def test_one_that_does_not_start_is_an_error(self, fake: str) -> None:
        with pytest.raises(ResourceError, match=r"the worker of absent ended with 1: .*absent_worker"):
            tool.Worker("absent", Path(sys.executable), fake, {})


def test_this_package_does_the_work_that_sizes_say() -> None:
    """Small sizes: each call takes the steps that BenchMARL takes, and returns a time."""
    from tools.peers import uavlab_worker

    sizes = {
        **tool.SIZES,
        "hidden": 8,
        "worlds": 4,
        "mappo": {"rollout_steps": 4, "epochs": 3, "minibatches": 2},
        "masac": {"batch": 8, "capacity": 256, "learning_starts": 16},
    }
    facts, calls = uavlab_worker.build(sizes)
    both = [piece.split() for piece in tool.PIECES]
    assert set(calls) == {f"{name}{suffix} {work}" for name, work in both for suffix in ("", worker.ONE_CRITIC)}
    for call, steps in facts["steps"].items():
        assert set(steps.values()) == {6 if call.startswith("mappo") else worker.STEPS}
    hidden = 8 * 8 + 8  # of the second layer; the first has 14 or 3 x 14 (+ 3 x 2) inputs, the last 4 outputs or 1
    assert facts["parameters"]["mappo"] == {"actor": 15 * 8 + hidden + 9 * 4, "critic": 3 * (43 * 8 + hidden + 9)}
    pair = 2 * (49 * 8 + hidden + 9)
    assert facts["parameters"]["masac"] == {"actor": 15 * 8 + hidden + 9 * 4, "critic": 3 * pair, "temperature": 1}
    assert facts["parameters"]["mappo, one critic"]["critic"] == 43 * 8 + hidden + 9
    assert facts["parameters"]["masac, one critic"]["critic"] == pair
    assert all(call() > 0 for call in calls.values())


class TestTable:
    def test_without_a_record_there_is_no_section(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(peers, "exists", lambda name: False)
        assert peers.parts() == []
        assert "## Another program" not in tables.tables()

    def test_both_settings_stand_beside_ours(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        record(tmp_path, monkeypatch)
        table, text, differences = peers.parts()
        assert table.splitlines()[2] == "| 128 | MAPPO update | 160.0 | 320.0 | **2.00x** | 100.0 | 80.0 | **0.80x** |"
        assert "| 128 | MASAC update | 10.0 | 20.0 |" in table
        assert (
            "MAPPO of width 128: 10 and 30; MAPPO, one critic of width 128: 10 and 11; MASAC of width 128: 10 and 60"
            in text
        )
        assert "torch 2.13.0+cpu" in text
        assert text.endswith("`python -m tools.peers --rounds 6`. Here, load 0.5 before.")
        assert differences == "What differs. One. Two."
