"""All kinds of the update equal each other after 200 updates, and runs in one process equal runs in processes."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.support.update_rungs import check_rungs_agree
from tests.unit.learners.masac.test_batched import train_runs

ONE_RUN = """
import sys, numpy, torch
sys.path.insert(0, {root!r})
from tests.unit.learners.masac.test_batched import train_runs
torch.set_num_threads(1)
numpy.savez({out!r}, **train_runs(({seed},), 200))
"""


@pytest.mark.parametrize(
    ("agents", "updates", "share", "seeds", "weighted"),
    [
        (1, 200, False, (0,), False),
        (2, 200, False, (0,), True),
        (4, 200, False, (0,), False),
        (8, 20, False, (0,), False),
        (3, 60, True, (3, 5), True),
    ],
)
def test_every_rung_equals_batched(
    agents: int, updates: int, share: bool, seeds: tuple[int, ...], weighted: bool
) -> None:
    check_rungs_agree(agents, updates, share, seeds, weighted)


def test_three_runs_in_one_process_equal_three_processes(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    seeds = (3, 11, 5)
    together = train_runs(seeds, 200)
    for run, seed in enumerate(seeds):
        out = tmp_path / f"{seed}.npz"
        script = ONE_RUN.format(root=str(request.config.rootpath), out=str(out), seed=seed)
        subprocess.run([sys.executable, "-c", script], check=True, timeout=120)
        alone = np.load(out)
        assert set(alone.files) == set(together)
        for name in alone.files:
            largest = np.abs(alone[name]).max()
            assert np.abs(together[name][run] - alone[name][0]).max() <= 1e-9 * largest, (seed, name)
    assert np.abs(together["actor.parameter"][0] - together["actor.parameter"][1]).max() > 1e-3
