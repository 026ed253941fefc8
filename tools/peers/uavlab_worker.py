"""MAPPO and MASAC of this package, with the toggles that runs start from: on ``spread``, or MAPPO on a task."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from tools.peers.worker import ONE_CRITIC, STEPS, Calls, completion, count_steps, seconds, serve, versions
from uavlab.core.rng import Streams, acting_noise
from uavlab.experiment import build as experiment
from uavlab.experiment.config import Config, configure
from uavlab.training import make_cycle

PARTS = ("actor", "critic", "temperature")


class Own:
    """A run that is driven piece by piece."""

    def __init__(self, config: Config, repeats: int = 1) -> None:
        """Build the run; a call is so many updates or cycles."""
        self.config, self.repeats = config, repeats
        self.rt, self.rng, self.learner, self.source = experiment.assemble(self.config)
        self.cycle = make_cycle(self.source, self.learner, self.rng, self.rt)

    def update(self) -> float:
        """Get a batch; return the seconds of all updates of a call on it."""
        batch = self.source.next()
        rows = batch.index.shape[1]
        return self._timed(lambda: self.learner.update(batch, self.learner.update_noise(self.rng, rows)))

    def iteration(self) -> float:
        return self._timed(self.cycle)

    def _timed(self, work: Callable[[], Any]) -> float:
        with self.rt.scope():
            return seconds(lambda: [work() for _ in range(self.repeats)])

    def score(self, sizes: Mapping[str, Any]) -> float:
        """Return the share of episodes in which the team reaches the goal."""
        spec, noise = self.config.env.spec, Streams([sizes["seed"]])
        policy = self.learner.policy(spec)

        @torch.no_grad()
        def act(obs: Tensor) -> Tensor:
            return policy(obs[None], acting_noise(noise, "score", len(obs), spec))[0]

        return completion(sizes, act)

    def parameters(self) -> dict[str, int]:
        return {part: sum(each.numel() for each in step.parameters) for part, step in self._optimizers().items()}

    def steps(self) -> dict[str, int]:
        """Return how many steps each optimizer has taken."""
        return {part: int(step.state_dict()["step"]) for part, step in self._optimizers().items()}

    def _optimizers(self) -> dict[str, Any]:
        return {part: getattr(self.learner, part) for part in PARTS if hasattr(self.learner, part)}


def on_spread(name: str, sizes: Mapping[str, Any], critic: str) -> Own:
    """Return a run with the sizes of the driver; as its peer it takes steps first, then updates, and undoes none."""
    own = {key: sizes[key] for key in ("horizon", "hidden", "worlds", "lr", "clip")} | sizes[name]
    own |= {"interval": STEPS, "n_step": 1} if name == "masac" else {"target_kl": 0.0}
    settings = {"learner": name, "device": "cpu", "uavs": sizes["agents"], "critic": critic, **own}
    return Own(configure("spread", settings), STEPS if name == "masac" else 1)


def on_task(sizes: Mapping[str, Any]) -> Own:
    settings = {key: sizes[key] for key in ("hidden", "worlds", "lr", "clip", "gamma", "seed")}
    rest = {"learner": "mappo", "device": "cpu", "critic_lr": sizes["lr"], "lam": sizes["algorithm"]["lmbda"]}
    return Own(configure(sizes["task"], {**settings, **rest, **sizes["mappo"], **sizes["ours"]}), sizes["iterations"])


def build(sizes: Mapping[str, Any]) -> tuple[dict[str, Any], Calls]:
    calls: dict[str, Callable[[], float]]
    if "task" in sizes:
        one = on_task(sizes)
        calls, parameters = {"train": one.iteration, "score": lambda: one.score(sizes)}, one.parameters()
        steps = count_steps({"train": calls["train"]}, lambda name: one.steps())
    else:
        runs = {
            f"{name}{suffix}": on_spread(name, sizes, critic)
            for name in ("mappo", "masac")
            for suffix, critic in (("", "central"), (ONE_CRITIC, "shared"))
        }
        one, parameters = runs["mappo"], {name: each.parameters() for name, each in runs.items()}
        calls = {
            f"{name} {piece}": getattr(each, piece) for name, each in runs.items() for piece in ("update", "iteration")
        }
        steps = count_steps(calls, lambda name: runs[name.rpartition(" ")[0]].steps())
    facts = {"versions": versions(("uavlab", "torch", "numpy")), "observations": one.config.env.spec.obs}
    return {**facts, "parameters": parameters, "steps": steps}, calls


if __name__ == "__main__":
    serve(build)
