"""A dry run of the check of GPU paths, on the CPU, finds nothing that fails."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tools.gpu_check.groups import ROOT

WHICH = [  # in the tool's order
    (["--only", "updates", "--only", "worlds"], ["updates", "worlds"], 0.75),
    pytest.param(["--only", "ranks"], ["ranks"], 3, marks=pytest.mark.soak),
    pytest.param(["1"], ["compile_claims", "ladder", "claims"], 4, marks=pytest.mark.soak),
    pytest.param(["2"], ["compile_runs", "env_and_replay", "ppo", "team"], 4, marks=pytest.mark.soak),
]


@pytest.mark.parametrize(("options", "names", "minutes"), WHICH)
def test_a_dry_run_on_the_cpu_finds_no_failure(
    options: list[str], names: list[str], minutes: float, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "tools.gpu_check", "--device", "cpu", "--minutes", str(minutes), "--jobs", "2"]
    command += [*options, "--out", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=75 + 60 * minutes)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    (path,) = tmp_path.glob("gpu_check_*.json")
    record = json.loads(path.read_text(encoding="utf-8"))
    assert record["dry_run"] is True
    rows = {name: [case["status"] for case in group["cases"]] for name, group in record["groups"].items()}
    assert list(rows) == names
    tried = {name: states for name, states in rows.items() if not name.startswith("compile_")}
    assert all({"ok", "fell back"} & {*states} for states in tried.values())  # the rest of the time is not tried
    assert not any("failed" in states for states in rows.values())
    for name in {"1": ("bench_ladder", "claims"), "2": ("bench_ppo", "bench_team")}.get(options[-1], ()):
        assert list(tmp_path.glob(f"{name}_*.json")), name
