"""Suites are run and listed wherever they are registered; reports are printed; claims are compared and measured."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli_runner import SETTINGS, uavlab
from uavlab import benchmarks as registry
from uavlab.benchmarks import Option, suite, suites
from uavlab.cli.measure import SYSTEMS
from uavlab.cli.runs import require_one_measure
from uavlab.core.errors import ConfigError
from uavlab.experiment import fit as search
from uavlab.experiment.names import presets as known
from uavlab.experiment.sizes import Sweep
from uavlab_lab.claims import report as book
from uavlab_lab.claims.ledger import ledger
from uavlab_lab.measure import doctor, profile_run


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Work in a folder of the test's own."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def mine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Register a suite from outside, as a person's own program does."""
    monkeypatch.setattr(registry, "REGISTRY", dict(suites()))

    options = [
        Option("depth", "how deep", (1, 8)),
        Option("share", "how much", (0.5, 1.0), float, several=False),
        Option("only", "which", kind=str),
    ]

    @suite("mine", about="of one's own", options=options)
    def mine_suite(rounds: int, device: str, depth: tuple[int, ...] = (), **more: Any) -> dict[str, Any]:
        return {"rows": [{"agents": 5, "device": device, "depth": depth, **more}]}


def test_bench(tmp_path: Path, mine: None) -> None:
    ended = uavlab("bench", "mine", "--rounds", "3", "--out", "mine.json", "--json")
    assert ended.code == 0
    assert json.loads((tmp_path / "mine.json").read_text()) == ended.json
    assert ended.json["command"] == "uavlab bench mine --rounds 3 --out mine.json --json"
    assert (ended.json["suite"], ended.json["rounds"]) == ("mine", 3)
    assert ended.json["rows"] == [{"agents": 5, "device": "auto", "depth": []}]
    assert uavlab("bench", "mine", "--depth", "2", "--depth", "3", "--json").json["rows"][0]["depth"] == [2, 3]
    for wrong in (["all"], ["mine", "--rounds", "2"], ["mine", "--device", "tpu"], ["mine", "--depth", "9"]):
        assert uavlab("bench", *wrong).code == 2


def test_options_are_numbers_or_texts_once_or_several_times(mine: None) -> None:
    words = ("--share", "0.1", "--share", "0.75", "--only", "a:b", "--only", "c")
    row = uavlab("bench", "mine", *words[2:], "--json").json["rows"][0]
    assert (row["share"], row["only"], row["depth"]) == (0.75, ["a:b", "c"], [])
    assert "share" not in uavlab("bench", "mine", "--json").json["rows"][0]  # the function has its own default
    ended = uavlab("bench", "mine", *words)
    assert ended.code == 0  # the last one counts
    assert uavlab("bench", "mine", "--share", "0.1").code == 2
    text = " ".join(uavlab("bench", "--help").out.split())
    assert "mine: how much. [" in text
    assert "mine: which; repeatable." in text


def test_help_lists_every_suite_and_its_own_options(mine: None) -> None:
    text = " ".join(uavlab("bench", "--help").out.split())
    for name, each in suites().items():
        assert f"`{name}` ({each.about})" in text
    assert "mine: how deep; repeatable." in text
    assert "ladder: 16 agents too." in text
    for name in ("curriculum", "learners"):  # an option of several suites has the help of each
        assert f"{name}: seeds of a " in text


def test_the_registry_is_read_by_bench_alone() -> None:
    look = "import sys, uavlab.cli\ntry: uavlab.cli.main()\nexcept SystemExit: pass\nprint('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", look, "--help"], capture_output=True, text=True)
    assert "Measure here" in done.stdout
    assert done.stdout.splitlines()[-1] == "False"


def test_options_of_the_ladder_belong_to_it(mine: None) -> None:
    for option, *value in (["full"], ["threads", "2"]):
        ended = uavlab("bench", "env", f"--{option}", *value)
        assert (ended.code, f"no option '{option}'; `bench ladder` has it." in ended.err) == (2, True)


def test_toggles() -> None:
    ended = uavlab("toggles", "--device", "cpu", "--json")
    assert ended.code == 0
    assert {"name", "values", "seam", "equality", "claim"} <= set(ended.json["rows"][0])
    assert ended.out.startswith("toggle ")


def test_profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []

    def profile_preset(preset: str, *layers: Any, **options: Any) -> dict[str, Any]:
        calls.append((preset, options))
        update = {"operators": 9, "launch_us": 1.0}
        update |= dict.fromkeys(("flop_per_s", "flop_per_s_ceiling", "bytes_per_s", "bytes_per_s_ceiling"), 1)
        tables: dict[str, Any] = {"stages": [], "candidates": [], "untried": [], "operators": [], "memory": {}}
        return {"verdict": "launch-bound: so it is", "update": update, **tables}

    monkeypatch.setattr(profile_run, "profile_preset", profile_preset)
    flags = ("--rounds", "5", "--all", "--limit", "9", "--out", "p.json", "--json")
    ended = uavlab("profile", "leader_follower_quick", *flags)
    assert ended.code == 0
    options = {"rounds": 5, "trace": None, "every": True, "limit": 9.0}
    assert calls == [("leader_follower_quick", options)]
    assert "launch-bound: so it is" in ended.out
    assert json.loads((tmp_path / "p.json").read_text()) == ended.json


def test_presets() -> None:
    ended = uavlab("presets", "--json")
    assert ended.code == 0
    assert set(ended.json) == set(known())
    assert {"leader_follower", "leader_follower_quick", "leader_follower_published"} <= set(ended.json)
    assert ended.out.count("\n") == len(ended.json) + 1


def test_doctor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "matrix_rate", lambda device, precision: 1e9)
    ended = uavlab("doctor", "--json")
    assert ended.code == 0
    assert all({"what", "value", "usable", "advice"} == set(row) for row in ended.json["rows"])
    assert len(ended.out.splitlines()) == len(ended.json["rows"]) + 1


class TestClaims:
    """The ledger on the command line, and two numbers that are counted, end to end."""

    @pytest.fixture(autouse=True)
    def own_folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(book, "FOLDER", tmp_path / "records")

    def test_nothing_is_written_or_measured_by_default(self, tmp_path: Path) -> None:
        ended = uavlab("claims", "--json")
        assert ended.code == 0
        assert [row["claim"] for row in ended.json["rows"]] == [claim.claim for claim in ledger()]
        decided = [row["verdict"] not in book.UNDECIDED for row in ended.json["rows"]]
        assert [row["wording"] in ended.out.rpartition("\n{")[0] for row in ended.json["rows"]] == decided
        assert any(decided)
        everything = uavlab("claims", "--all")
        assert all(row["wording"] in everything.out for row in ended.json["rows"])
        assert book.count_verdicts(ended.json["rows"]) in ended.out
        assert "Not measured on this machine" in ended.out
        assert list(tmp_path.iterdir()) == []

    def test_counted_claims_end_to_end(self, tmp_path: Path) -> None:
        names = ["duplicate-waste-2", "equal-updates"]
        ended = uavlab("claims", *(part for name in names for part in ("--measure", name)), "--rounds", 3, "--json")
        assert ended.code == 0, ended.err
        rows = ended.json["rows"]
        assert [(row["claim"], row["measured"], row["verdict"]) for row in rows] == [
            ("duplicate-waste-2", 0.5, "holds"),
            ("equal-updates", 1_000_000, "refuted by arithmetic"),
        ]
        assert rows[0]["command"] == "uavlab claims --measure duplicate-waste-2"
        assert "equal-updates: 1,000,000 updates, claimed 10,000,000 updates" in ended.err
        recorded = uavlab("claims", "--json").json["rows"]  # from the record of this machine
        assert [row for row in recorded if row["claim"] in names] == rows

    def test_numbers_in_a_file_of_ones_own(self, tmp_path: Path) -> None:
        path = tmp_path / "mine.json"
        assert uavlab("claims", "--measure", "duplicate-waste-2", "--rounds", 3, "--out", path).code == 0
        assert [file.name for file in tmp_path.iterdir()] == ["mine.json"]
        (row,) = [row for row in uavlab("claims", "--out", path, "--json").json["rows"] if row["machine"]]
        assert row["claim"] == "duplicate-waste-2"
        assert uavlab("claims", "--out", tmp_path / "none.json").code == 3

    def test_one_system(self) -> None:
        assert set(SYSTEMS) == {claim.system for claim in ledger()}
        rows = uavlab("claims", "--system", "assignment", "--json").json["rows"]
        assert [row["claim"] for row in rows] == ["zero-shot"]

    def test_mistakes(self) -> None:
        ended = uavlab("claims", "--measure", "duplicate-waste")
        assert ended.code == 2
        assert "did you mean 'duplicate-waste-" in ended.err
        assert uavlab("claims", "--system", "snakes").code == 2
        assert uavlab("claims", "--rounds", "2").code == 2


def test_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def sweep(config: Any, most: int, budget: int, say: Any) -> Sweep:
        asked.append((most, budget))
        say("worlds 1: slow")
        return Sweep({2: 5.0}, "agent-steps", "4 is too many")

    monkeypatch.setattr(search, "sweep_worlds", sweep)
    ended = uavlab("fit", "leader_follower", *SETTINGS, "--memory", "80MB", "--most", "9", "--out", "f.json", "--json")
    assert asked == [(9, 80_000_000)]
    *lines, options, _ = ended.out.splitlines()
    assert options == "--set worlds=2 --set batch=9"
    assert lines[0] == "worlds 1: slow"
    assert ended.json["settings"] == {"worlds": 2, "batch": 9}
    assert {"setting": "batch", "value": 10, "fits": True} in ended.json["trials"]
    assert json.loads((tmp_path / "f.json").read_text()) == ended.json
    assert (ended.json["memory"], ended.json["most"]) == ("80MB", 9)
    assert uavlab("train", "leader_follower", *SETTINGS, *options.split(), "--dry-run").code == 0


def test_ranks_do_not_measure_worlds_each_for_itself() -> None:
    require_one_measure({"worlds": "auto"}, 1)
    require_one_measure({"worlds": 8}, 2)
    with pytest.raises(ConfigError, match="worlds: got auto in 2 ranks, which would measure different numbers"):
        require_one_measure({"worlds": "auto"}, 2)
