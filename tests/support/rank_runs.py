"""Runs of several ranks under torchrun."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

from tests.support.fixtures_config import TINY
from uavlab.experiment.run_dir import rank_folder

ROOT = Path(__file__).parents[2]
SMALL: dict[str, Any] = {**TINY, "evaluate_every": 4, "rank_timeout_s": 8.0}


class Ended(NamedTuple):
    """How a launch of ranks ended."""

    code: int
    out: str
    err: str
    seconds: float


def launch(
    *words: str | Path,
    ranks: int = 2,
    restarts: int = 0,
    fault: str = "none:0:0",
    script: str = "faulty_rank.py",
    **more: str,
) -> subprocess.Popen[str]:
    """Start ``uavlab`` with these words, or another script, on several ranks; ``more`` are environment variables."""
    torchrun = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        f"--nproc-per-node={ranks}",
        f"--max-restarts={restarts}",
    ]
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    env = {**os.environ, "FAULT": fault, "OMP_NUM_THREADS": "1", "PYTHONPATH": path, "PYTHONWARNINGS": "ignore"}
    env |= {"TORCH_CPP_LOG_LEVEL": "ERROR", **more}
    command = [*torchrun, "--standalone", str(Path(__file__).with_name(script)), *map(str, words)]
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT)


def ended(process: "subprocess.Popen[str]", began: float) -> Ended:
    """Wait for a launch."""
    out, err = process.communicate()
    return Ended(process.returncode, out, err, time.monotonic() - began)


def train(folder: Path, preset: str = "leader_follower", settings: dict[str, Any] = SMALL, **how: Any) -> Ended:
    """Train a run of several ranks to its end; ``how`` goes to ``launch``."""
    words = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    began = time.monotonic()
    return ended(launch("train", preset, *words, "--out", folder, **how), began)


def resume(folder: Path, *words: str, **how: Any) -> Ended:
    """Go on with a run."""
    began = time.monotonic()
    return ended(launch("resume", folder, *words, **how), began)


def record(folder: Path, rank: int = 0) -> dict[str, Any]:
    """Return ``run.json`` of a rank."""
    return json.loads((rank_folder(folder, rank) / "run.json").read_text())
