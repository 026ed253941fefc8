"""BenchMARL's MAPPO on an environment of this package, through its face in TorchRL."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from benchmarl.environments.common import TaskClass
from tensordict import TensorDict
from torch import Tensor
from torchrl.envs import RewardScaling
from torchrl.envs.utils import ExplorationType, set_exploration_type

import uavlab as ul
from tools.peers.benchmarl_worker import GROUP, PACKAGES, Peer
from tools.peers.worker import Calls, completion, count_steps, seconds, serve, versions


class Team(TaskClass):
    """A task of this package, whose agents form one group; rewards are scaled."""

    def get_env_fun(self, num_envs: int, continuous_actions: bool, seed: int | None, device: Any) -> Callable[[], Any]:
        """Return a function that builds worlds."""

        def build() -> Any:
            env = ul.to_torchrl(self.name, num_envs, device, {GROUP: self.config["agents"]})
            env.set_seed(seed)
            return env

        return build

    def get_env_transforms(self, env: Any) -> list[Any]:
        """Return the scale of rewards."""
        return [RewardScaling(loc=0.0, scale=self.config["reward_scale"], in_keys=[(GROUP, "reward")])]

    def supports_continuous_actions(self) -> bool:
        """Return that actions are continuous."""
        return True

    def supports_discrete_actions(self) -> bool:
        """Return that agents do not choose moves."""
        return False

    def has_render(self, env: Any) -> bool:
        """Return that nothing is drawn."""
        return False

    def max_steps(self, env: Any) -> int:
        """Return the horizon."""
        return env.simulator.spec.horizon

    def group_map(self, env: Any) -> dict[str, list[str]]:
        """Return the one group."""
        return env.group_map

    def observation_spec(self, env: Any) -> Any:
        """Return what agents observe."""
        return env.full_observation_spec_unbatched

    def action_spec(self, env: Any) -> Any:
        """Return what agents do."""
        return env.full_action_spec_unbatched

    def info_spec(self, env: Any) -> None:
        """Return nothing: there are no infos."""

    def state_spec(self, env: Any) -> None:
        """Return nothing: there is no state beside observations."""

    def action_mask_spec(self, env: Any) -> None:
        """Return nothing: there are no masks."""

    @staticmethod
    def env_name() -> str:
        """Return the name of this package."""
        return "uavlab"


def build(sizes: Mapping[str, Any]) -> tuple[dict[str, Any], Calls]:
    """Build an experiment; return the facts of this program, and its calls: some iterations, and a score."""
    torch.manual_seed(sizes["seed"])
    peer = Peer(
        "mappo", sizes, False, Team(sizes["task"], {"agents": sizes["agents"], "reward_scale": sizes["reward_scale"]})
    )

    def act(obs: Tensor) -> Tensor:
        given = TensorDict({GROUP: TensorDict({"observation": obs}, obs.shape[:2])}, obs.shape[:1])
        with set_exploration_type(ExplorationType.RANDOM), torch.no_grad():
            return peer.experiment.policy(given)[GROUP, "action"].clamp(-1, 1)

    calls = {
        "train": lambda: seconds(lambda: [peer.iteration() for _ in range(sizes["iterations"])]),
        "score": lambda: completion(sizes, act),
    }
    return {
        "versions": versions(PACKAGES),
        "observations": peer.experiment.observation_spec[GROUP, "observation"].shape[-1],
        "parameters": peer.parameters(),
        "steps": count_steps({"train": calls["train"]}, lambda name: peer.steps()),
    }, calls


if __name__ == "__main__":
    serve(build)
