"""MAPPO and MASAC of this package on ``spread``, with the toggles that runs start from."""

from collections.abc import Callable, Mapping
from typing import Any

from tools.peers.worker import ONE_CRITIC, STEPS, Calls, count_steps, seconds, serve, versions
from uavlab.experiment import build as experiment
from uavlab.experiment.config import Config, configure
from uavlab.training import make_cycle

PACKAGES = ("uavlab", "torch", "numpy")
PARTS = ("actor", "critic", "temperature")


class Own:
    """A run that is driven piece by piece."""

    def __init__(self, name: str, config: Config) -> None:
        """Build the run."""
        self.config = config
        self.rt, self.rng, self.learner, self.source = experiment.assemble(self.config)
        self.cycle = make_cycle(self.source, self.learner, self.rng, self.rt)
        self.repeats = STEPS if name == "masac" else 1

    def update(self) -> float:
        """Get a batch; return the seconds of all updates of a call on it."""
        batch = self.source.next()
        rows = batch.index.shape[1]
        return self._timed(lambda: self.learner.update(batch, self.learner.update_noise(self.rng, rows)))

    def iteration(self) -> float:
        """Return the seconds of as many cycles as a call has updates."""
        return self._timed(self.cycle)

    def _timed(self, work: Callable[[], Any]) -> float:
        with self.rt.scope():
            return seconds(lambda: [work() for _ in range(self.repeats)])

    def parameters(self) -> dict[str, int]:
        """Return the number of parameters of each optimizer."""
        return {part: sum(each.numel() for each in step.parameters) for part, step in self._optimizers().items()}

    def steps(self) -> dict[str, int]:
        """Return how many steps each optimizer has taken."""
        return {part: int(step.state_dict()["step"]) for part, step in self._optimizers().items()}

    def _optimizers(self) -> dict[str, Any]:
        return {part: getattr(self.learner, part) for part in PARTS if hasattr(self.learner, part)}


def settings(name: str, sizes: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings with the sizes of the driver."""
    values = {
        "learner": name,
        "device": "cpu",
        "uavs": sizes["agents"],
        **{key: sizes[key] for key in ("horizon", "hidden", "worlds", "lr", "clip")},
        **sizes[name],
    }
    # as its peer: steps first, then updates, targets of one step; no step is undone, however far the policy goes
    return {**values, "interval": STEPS, "n_step": 1} if name == "masac" else {**values, "target_kl": 0.0}


def build(sizes: Mapping[str, Any]) -> tuple[dict[str, Any], Calls]:
    """Build all runs; return the facts of this program, and its calls."""
    runs = {
        f"{name}{suffix}": Own(name, configure("spread", {**settings(name, sizes), "critic": critic}))
        for name in ("mappo", "masac")
        for suffix, critic in (("", "central"), (ONE_CRITIC, "shared"))
    }
    calls = {f"{name} {piece}": getattr(run, piece) for name, run in runs.items() for piece in ("update", "iteration")}
    return {
        "versions": versions(PACKAGES),
        "observations": runs["mappo"].config.env.spec.obs,
        "parameters": {name: run.parameters() for name, run in runs.items()},
        "steps": count_steps(calls, lambda name: runs[name.rpartition(" ")[0]].steps()),
    }, calls


if __name__ == "__main__":
    serve(build)
