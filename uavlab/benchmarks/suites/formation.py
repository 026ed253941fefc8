"""The most strict formation that starts and speeds of the published test allow, whatever the policy."""

import torch

from uavlab.benchmarks.registry import Record, suite
from uavlab.core.bootstrap import interval
from uavlab.core.rng import Streams
from uavlab.envs.leader_follower.bounds import bound, earliest_gathering, possible_gathering
from uavlab.envs.leader_follower.env import PUBLISHED
from uavlab.experiment import build
from uavlab.experiment.config import Device, RunConfig

FLIGHTS, PIECE = 500, 20  # starts, and how many of them are searched at once
MOVES = 120  # in which every team can gather
STEPS = (160, 200, 220, 240, 300, 500, 1000)  # of flights in the mean


@suite("formation", about="the most strict formation that the published test allows")
def formation_suite(rounds: int, device: Device, flights: int = FLIGHTS) -> Record:
    """Bound strict formation of the published test by how early its teams can gather; ``rounds`` has no effect.

    An action takes effect one step late there, so a team that gathers after n moves was apart for n steps. Starts are
    those of ``uavlab evaluate`` with as many episodes and seed 0.

    Returns:
        ``flights``; ``apart``, the steps before a team is gathered: at least ``bound`` in the mean over starts, with
        ``low`` and ``high`` of its 95 % bootstrap interval, the ``longest`` one, the squared mean of roots ``rooted``
        (see ``bounds.bound``), and ``possible``, the mean by sampled controls; and rows with ``steps``, ``bound`` and
        ``possible``: strict formation of flights that take so many steps in the mean, if formation holds once gathered.
    """
    rt = build.runtime(RunConfig(device=device))
    with rt.scope():
        noise = Streams([0], rt.device).uniform("evaluate.start", flights, PUBLISHED.spec.initial_noise)
        starts = [PUBLISHED.initial(piece) for piece in noise[0].double().split(PIECE)]
        least = torch.cat([earliest_gathering(PUBLISHED, start, MOVES) for start in starts])
        reached = torch.cat([possible_gathering(PUBLISHED, start, MOVES) for start in starts])
    mean, low, high = interval(least.numpy(force=True))
    apart = {"bound": mean, "low": low, "high": high, "rooted": least.double().sqrt().mean().item() ** 2}
    apart["possible"] = reached.double().mean().item()
    rows = [
        {
            "steps": steps,
            "bound": round(bound(least, steps).item(), 4),
            "possible": round(bound(reached, steps).item(), 4),
        }
        for steps in STEPS
    ]
    apart = {**{name: round(value, 3) for name, value in apart.items()}, "longest": int(least.max())}
    return {"flights": flights, "apart": apart, "rows": rows}
