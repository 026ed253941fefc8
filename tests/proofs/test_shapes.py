"""The annotated shapes of core, ops, envs, nets and replay, enforced by beartype in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PRELUDE = """
from jaxtyping import install_import_hook
install_import_hook(["uavlab.core", "uavlab.ops", "uavlab.envs", "uavlab.nets", "uavlab.replay"], "beartype.beartype")
from typing import runtime_checkable
from uavlab.core import protocols
runtime_checkable(protocols.Env)  # annotations name it, and beartype looks only at classes that it can check
import torch
from uavlab.core.rng import Streams
from uavlab.core.types import tree_map
from uavlab.envs.autoreset import advance, make_pool, start_worlds
from uavlab.envs.leader_follower.env import PUBLISHED, LeaderFollower
from uavlab.nets.sequences import StackedGRU
from uavlab.nets.mlp import StackedMLP
from uavlab.ops.action_sampling import squashed_gaussian
from uavlab.ops.geometry import distance, nearest_offsets
from uavlab.replay.ring import add, allocate, choose, take
from uavlab.replay.segments import cut, paste, plan
rng = Streams([0, 1])
"""
FLIGHTS = """
for env in (LeaderFollower(), PUBLISHED, LeaderFollower(followers=3, obstacles=2, sight=1, obstacle_speed=5.0)):
    spec = env.spec
    worlds = start_worlds(env, rng.uniform("start", 4, spec.initial_noise).flatten(0, 1))
    pool = make_pool(env, torch.rand(2, 8, spec.initial_noise, generator=torch.Generator().manual_seed(0)))
    net = StackedMLP(spec.obs, 8, 2 * spec.action)
    shape = (2 * spec.agents, net.inputs)
    noise = rng.uniform("net", spec.agents, net.count).flatten(0, 1)
    theta = net.initial_for(noise, torch.zeros(shape), torch.ones(shape))
    ring = None
    for step in range(20):
        obs = worlds.obs.unflatten(0, (2, 4))
        out = net(theta, obs.transpose(1, 2).flatten(0, 1)).view(2, spec.agents, 4, -1).transpose(1, 2)
        action, _ = squashed_gaussian(*out.chunk(2, -1), rng.normal("act", 4, spec.agents, spec.action))
        action, nothing = action.flatten(0, 1), torch.zeros(8, 0)
        env.measure(worlds.state, action, env.transition(worlds.state, action, nothing))
        worlds, row = advance(env, worlds, action, nothing, pool)
        rows = tree_map(lambda leaf: leaf.unflatten(0, (2, 4)), row)
        ring = ring or allocate(rows, 50)
        add(ring, rows)
        take(ring, choose(ring, rng.integers("replay", 5)))
    (name,) = plan([], total=int(ring.size), capacity=50)
    paste(ring, {name: cut(ring, name)}, int(ring.size))
net = StackedGRU(3, 8, 5, 2)
theta, fresh = net.initial(rng.uniform("gru", net.count)), torch.zeros(2, 6, 4, dtype=torch.bool)
out, memory = net(theta, torch.zeros(2, 6, 4, 3), torch.zeros(2, 4, 5), fresh)
protocols.forget(memory[:, :1].transpose(1, 2), torch.ones(2, 4, dtype=torch.bool))
"""
MUTANTS = {
    "geometry": "distance(torch.zeros(4, 3), torch.zeros(4, 3))",
    "nearest": "nearest_offsets(torch.zeros(2, 3, 2), torch.zeros(5, 3, 2), 1)",
    "action": "env = LeaderFollower(); state = env.initial(torch.rand(3, 13)); "
    "env.transition(state, torch.zeros(3, 2, 3), torch.zeros(3, 0))",
    "network": "net = StackedMLP(3, 4, 2); net(torch.zeros(2, net.count), torch.zeros(3, 5, 3))",
    "memory": "net, x = StackedGRU(3, 4, 5, 2), torch.zeros(2, 6, 4, 3); "
    "net(torch.zeros(2, net.count), x, torch.zeros(2, 3, 5))",
    "density": "squashed_gaussian(torch.zeros(4, 2), torch.zeros(4, 2), torch.zeros(3, 2))",
    "dtype": "env = LeaderFollower(); start_worlds(env, torch.zeros(3, 13, dtype=torch.int64))",
}


def run(script: str) -> subprocess.CompletedProcess[str]:
    """Run Python on the prelude and a script."""
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", PRELUDE + script], capture_output=True, text=True, timeout=300,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}, check=False,
    )  # fmt: skip


def test_shapes_hold_in_flight() -> None:
    result = run(FLIGHTS)
    assert result.returncode == 0, result.stderr[-2000:]


def test_wrong_shapes_are_refused() -> None:
    attempts = "".join(
        f"try:\n    {code}\n    print({name!r}, 'accepted')\n"
        f"except Exception as error:\n    print({name!r}, type(error).__name__)\n"
        for name, code in MUTANTS.items()
    )
    result = run(attempts)
    assert result.returncode == 0, result.stderr[-2000:]
    assert dict(line.split() for line in result.stdout.splitlines()) == dict.fromkeys(MUTANTS, "TypeCheckError")
