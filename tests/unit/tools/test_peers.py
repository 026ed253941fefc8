"""The comparison takes turns, compares equal work only, and says what to install; BenchMARL itself is faked."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from tools.peers import __main__ as tool
from tools.peers import learning, uavlab_worker, worker
from uavlab.core.errors import ConfigError, ResourceError
from uavlab.profiling.timing import WARM_UP

OURS, EACH, OURS_ONE, ONE = tool.PROGRAMS
FACTS = {"threads": 1, "observations": 14, "parameters": {"actor": 10}, "steps": {"actor": 20}}
FACTS["versions"] = {"torch": "2.13.0"}
FAKE = """
import json, sys
print(json.dumps({"sizes": json.loads(sys.argv[1])}), flush=True)
for line in sys.stdin:
    name = json.loads(line)
    if name == "dies":
        sys.exit("first line\\nno such call")
    print(len(name), flush=True)
"""


def test_every_other_round_is_backwards_and_the_first_ones_do_not_count() -> None:
    asked: list[tuple[str, str]] = []
    seconds = tool.measure(lambda program, piece: asked.append((piece, program)) or len(asked) - 1.0, 2)
    calls = len(tool.PIECES) * len(tool.PROGRAMS)
    own = [(tool.PIECES[0], name) for name in (OURS, EACH, OURS_ONE, ONE)]
    assert asked[WARM_UP * calls :][:4] == own
    assert asked[(WARM_UP + 1) * calls :][:4] == own[::-1]
    assert seconds[tool.PIECES[0], OURS] == [WARM_UP * calls, (WARM_UP + 1) * calls + 3]


def test_ratios_are_of_the_same_round() -> None:
    """Ratios 2, 2, 4, 4, 4, 4 of equal rounds, median 4."""
    ours = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0]
    theirs = [2.0, 4.0, 16.0, 32.0, 64.0, 128.0]
    seconds = {(tool.PIECES[0], name): theirs if name == EACH else ours for name in tool.PROGRAMS}
    seconds[tool.PIECES[0], OURS_ONE] = [x / 3 for x in ours]  # with one critic, to be compared with its like
    own, each, own_one, one = tool.rows(seconds)
    assert (own["ms"], each["ms"], each["over_uavlab"], each["low"], each["high"]) == (8000.0, 32000.0, 4.0, 2.0, 4.0)
    assert (own["over_uavlab"], own_one["over_uavlab"], one["over_uavlab"]) == (1.0, 1.0, 3.0)
    [row] = tool.rows({("masac update", OURS): [1.6]})
    assert row["ms"] == 1600 / worker.STEPS


@pytest.mark.parametrize("name", ["parameters", "steps", "observations", "threads", "versions"])
def test_other_work_is_refused(name: str) -> None:
    tool.require_same({"uavlab": FACTS, "benchmarl": FACTS})
    other = {**FACTS, name: {"torch": "2.12.0"} if name == "versions" else 18}
    with pytest.raises(ConfigError, match=rf"peers: {'torch' if name == 'versions' else name}: got"):
        tool.require_same({"uavlab": FACTS, "benchmarl": other})


def test_what_is_missing_is_told_with_the_next_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        tool.main(["--python", str(tmp_path / "python"), "--out", str(tmp_path / "peers.json")])
    message = capsys.readouterr().err
    assert f"no Python at {tmp_path / 'python'}" in message
    assert "python3.11 -m venv build/peers && build/peers/bin/pip install -r tools/peers/requirements.txt" in message
    pinned = "# a comment\ntorch==2.13.0\nbenchmarl==1.5.2\n"
    tool.require_pinned({"torch": "2.13.0+cpu", "benchmarl": "1.5.2", "vmas": "9"}, pinned)
    with pytest.raises(ConfigError, match=r"got benchmarl 1\.5\.1; expected .* run in "):
        tool.require_pinned({"torch": "2.13.0+cpu", "benchmarl": "1.5.1"}, pinned)


def test_torch_and_numpy_are_those_of_this_package() -> None:
    constraints, pinned = (
        dict(re.findall(r"^([\w-]+)==([\w.]+)", path.read_text(encoding="utf-8"), re.MULTILINE))
        for path in (tool.ROOT / "constraints.txt", tool.REQUIREMENTS)
    )
    assert [pinned[name] for name in ("torch", "numpy")] == [constraints[name] for name in ("torch", "numpy")]


def test_a_worker_answers_and_its_end_is_an_error_with_its_last_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "tools" / "peers"
    package.mkdir(parents=True)
    (package / "fake_worker.py").write_text(FAKE)
    monkeypatch.setattr(tool, "ROOT", tmp_path)
    one = tool.Worker("fake", sys.executable, {"hidden": 3})
    assert one.facts == {"sizes": {"hidden": 3}}
    assert [one.ask("four"), one.ask("five5")] == [4, 5]
    with pytest.raises(ResourceError, match="the worker of fake ended with 1: no such call"):
        one.ask("dies")
    with pytest.raises(ResourceError, match=r"the worker of absent ended with 1: .*absent_worker"):
        tool.Worker("absent", sys.executable, {})


def test_this_package_does_the_work_that_sizes_say() -> None:
    """The second layer has 8 x 8 + 8 parameters; the first 14 or 3 x 14 (+ 3 x 2) inputs, the last 4 outputs or 1."""
    small = {"hidden": 8, "worlds": 4, "mappo": {"rollout_steps": 4, "epochs": 3, "minibatches": 2}}
    masac = {"batch": 8, "capacity": 256, "learning_starts": 16}
    facts, calls = uavlab_worker.build({**tool.SIZES, **small, "masac": masac})
    both = [piece.split() for piece in tool.PIECES]
    assert set(calls) == {f"{name}{suffix} {work}" for name, work in both for suffix in ("", worker.ONE_CRITIC)}
    for call, steps in facts["steps"].items():
        assert set(steps.values()) == {6 if call.startswith("mappo") else worker.STEPS}
    actor, pair = 15 * 8 + 72 + 9 * 4, 2 * (49 * 8 + 72 + 9)
    assert facts["parameters"]["mappo"] == {"actor": actor, "critic": 3 * (43 * 8 + 72 + 9)}
    assert facts["parameters"]["masac"] == {"actor": actor, "critic": 3 * pair, "temperature": 1}
    assert [facts["parameters"][f"{name}, one critic"]["critic"] for name in ("mappo", "masac")] == [425, pair]
    sizes = {**learning.SIZES, **small, "iterations": 1, "episodes": 2, "seed": 0}
    facts, calls = uavlab_worker.build(sizes)  # two agents with 7 observations each
    assert facts["parameters"] == {"actor": 2 * (8 * 8 + 72 + 9 * 4), "critic": 2 * (15 * 8 + 72 + 9)}
    assert (facts["observations"], facts["steps"]) == (7, {"train": {"actor": 6, "critic": 6}})
    assert calls["train"]() > 0
    assert calls["score"]() in (0, 0.5, 1)


def test_each_trains_until_it_reaches_the_goal_or_the_limit_and_they_take_turns() -> None:
    scores = {"uavlab": iter([0.5, 0.9]), "benchmarl": iter([0.1, 0.89, 0.0])}
    calls: list[str] = []

    def ask(name: str, call: str) -> float:
        calls.append(f"{name} {call}")
        return {"uavlab": 10.0, "benchmarl": 20.0}[name] if call == "train" else next(scores[name])

    rows = learning.train(ask, limit=50)
    assert rows["uavlab"] == {"seconds": 20.0, "reached": True, "curve": [[10.0, 0.5], [20.0, 0.9]]}
    assert (rows["benchmarl"]["seconds"], rows["benchmarl"]["reached"]) == (60.0, False)
    assert calls[::2] == [f"{name} train" for name in ("uavlab", "benchmarl", "benchmarl", "uavlab", "benchmarl")]


def test_a_second_call_trains_the_seeds_that_are_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained: list[int] = []

    def run_seed(seed: int, minutes: float, python: Path) -> Any:
        trained.append(seed)
        return {}, [{"program": name, "seed": seed, "seconds": 1.0, "curve": []} for name in tool.NAMES.values()]

    monkeypatch.setattr(learning, "run_seed", run_seed)
    out = tmp_path / "record.json"
    for seeds in ("2", "3"):
        learning.main(["--python", sys.executable, "--seeds", seeds, "--out", str(out)])
    assert trained == [0, 1, 2]
    assert [row["seed"] for row in json.loads(out.read_text())["rows"]] == [0, 0, 1, 1, 2, 2]
    with pytest.raises(ConfigError, match=r"got minutes 10\.0; expected that of this call: name a new file"):
        learning.stored(out, 11.0)
