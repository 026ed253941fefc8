"""Train, watch, evaluate and use a team, with an environment of the user's own."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from chase import Chase
from torch import Tensor

import uavlab as ul


def log(run: ul.Run, row: dict[str, Any]) -> None:
    """Stop early."""
    if row["update"] > 10:
        run.stop()


def greedy(obs: Tensor) -> Tensor:
    """Fly towards the prey."""
    direction: Tensor = (obs[..., 2:] - obs[..., :2]).sign()
    return direction


env: ul.Env[Any] = Chase(reach=0.05)
spec: ul.EnvSpec = env.spec
print(ul.check_env(Chase()), ul.check_env(env))
run: ul.Run = ul.train(Chase(reach=0.05), updates=20, runs=2, settings={"gamma": 0.9}, on_log=log, out=Path("run"))
for progress in ul.start("leader_follower_quick", updates=10, seed=3, toggles="eager"):
    number: int = progress.number
scores: ul.Scores = ul.evaluate(run, episodes=2)
low: float = scores["caught"]["low"]
print(ul.evaluate(env, policy=greedy), ul.evaluate("mapping", policy="random", episodes=2))
act: Callable[[Tensor], Tensor] = run.policy()
actions: Tensor = act(torch.zeros(1, 2, 4))
team: ul.TrainedPolicy = ul.load("run", device="cpu")
page: Path = ul.fly(team, "flight.html")
resumed: ul.Run = ul.resume("run", updates=30)
