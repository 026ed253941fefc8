"""BenchMARL's MAPPO and MASAC on ``simple_spread`` of VMAS, or its MAPPO on a task of this package.

Log, evaluation and checkpoints are off. BenchMARL's own functions collect, store, draw and train; ``train`` and
``iteration`` are its loop (``Experiment._collection_loop``) without the figures that it computes for its log.
"""

import atexit
import shutil
import tempfile
from collections.abc import Callable, Mapping
from itertools import repeat
from typing import Any

import torch
from benchmarl.algorithms import MappoConfig, MasacConfig
from benchmarl.environments import VmasTask
from benchmarl.environments.common import TaskClass
from benchmarl.experiment import Experiment, ExperimentConfig
from benchmarl.models.mlp import MlpConfig
from tensordict import TensorDict
from torch import Tensor
from torchrl.envs import RewardScaling
from torchrl.envs.utils import ExplorationType, set_exploration_type

from tools.peers.worker import ONE_CRITIC, STEPS, Calls, completion, count_steps, seconds, serve, versions

PACKAGES = ("benchmarl", "torchrl", "tensordict", "vmas", "torch", "numpy")
GROUP = "agents"
PARTS = {  # names of its losses
    "loss_objective": "actor",
    "loss_actor": "actor",
    "loss_critic": "critic",
    "loss_qvalue": "critic",
    "loss_alpha": "temperature",
}


class Team(TaskClass):
    """A task of this package, whose agents form one group and are paid scaled rewards."""

    def get_env_fun(self, num_envs: int, continuous_actions: bool, seed: int | None, device: Any) -> Callable[[], Any]:
        def build() -> Any:
            import uavlab as ul  # the other comparison needs it not

            env = ul.to_torchrl(self.name, num_envs, device, {GROUP: self.config["agents"]})
            env.set_seed(seed)
            return env

        return build

    def get_env_transforms(self, env: Any) -> list[Any]:
        return [RewardScaling(loc=0.0, scale=self.config["reward_scale"], in_keys=[(GROUP, "reward")])]

    def supports_continuous_actions(self) -> bool:
        return True

    def supports_discrete_actions(self) -> bool:
        return False

    def has_render(self, env: Any) -> bool:
        return False

    def max_steps(self, env: Any) -> int:
        return env.simulator.spec.horizon

    def group_map(self, env: Any) -> dict[str, list[str]]:
        return env.group_map

    def observation_spec(self, env: Any) -> Any:
        return env.full_observation_spec_unbatched

    def action_spec(self, env: Any) -> Any:
        return env.full_action_spec_unbatched

    def info_spec(self, env: Any) -> None:
        return None

    state_spec = action_mask_spec = info_spec

    @staticmethod
    def env_name() -> str:
        return "uavlab"


class Fixed:
    """A replay buffer that always returns the same batch."""

    def __init__(self, batch: Any) -> None:
        self.batch = batch

    def sample(self) -> Any:
        return self.batch.clone(recurse=False)

    def update_tensordict_priority(self, batch: Any) -> None:
        """Do nothing, as a buffer without priorities."""


class Peer:
    """An experiment that runs piece by piece."""

    def __init__(self, name: str, sizes: Mapping[str, Any], share_critic: bool, task: Any = None) -> None:
        """Build the experiment with the sizes of the driver, on ``simple_spread`` or another task."""
        folder = tempfile.mkdtemp(prefix="peers-")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        algorithm = {"mappo": MappoConfig, "masac": MasacConfig}[name].get_from_yaml()
        algorithm.__dict__.update(sizes.get("algorithm", {}))
        algorithm.share_param_critic = share_critic
        hidden = sizes["hidden"]
        network = MlpConfig(
            num_cells=[hidden, hidden],
            layer_class=torch.nn.Linear,
            activation_class=torch.nn.ReLU,
            norm_class=torch.nn.LayerNorm,
            norm_kwargs={"normalized_shape": hidden, "elementwise_affine": False},
        )
        task, seed = task or simple_spread(sizes), sizes.get("seed", 0)
        self.experiment = Experiment(task, algorithm, network, seed, config(name, sizes, folder))
        self.batches = iter(self.experiment.collector)

    def iteration(self) -> None:
        self.train(next(self.batches))
        self.experiment.collector.update_policy_weights_()

    def train(self, batch: Any) -> None:
        """Store a batch, and take all steps that follow it."""
        own, settings, on_policy = self.experiment, self.experiment.config, self.experiment.on_policy
        rows = batch.detach().exclude(*own._get_excluded_keys(GROUP)).to(settings.train_device)
        rows = own.algorithm.process_batch(GROUP, rows).reshape(-1)
        buffer = own.replay_buffers[GROUP]
        buffer.extend(rows.to(buffer.storage.device))
        parts = -(-settings.train_batch_size(on_policy) // settings.train_minibatch_size(on_policy))
        for _ in repeat(None, settings.n_optimizer_steps(on_policy) * parts):
            own._optimizer_loop(GROUP)

    def update_mappo(self) -> float:
        """Collect a batch; return the seconds of training on it."""
        batch = next(self.batches)
        return seconds(lambda: self.train(batch))

    def update_masac(self) -> float:
        """Draw a batch; return the seconds of ``STEPS`` updates on it."""
        buffers = self.experiment.replay_buffers
        before, buffers[GROUP] = buffers[GROUP], Fixed(buffers[GROUP].sample())
        try:
            return seconds(lambda: [self.experiment._optimizer_loop(GROUP) for _ in range(STEPS)])
        finally:
            buffers[GROUP] = before

    def parameters(self) -> dict[str, int]:
        return {
            PARTS[name]: sum(each.numel() for group in adam.param_groups for each in group["params"])
            for name, adam in self.experiment.optimizers[GROUP].items()
        }

    def steps(self) -> dict[str, int]:
        return {
            PARTS[name]: max((int(state["step"]) for state in adam.state.values()), default=0)
            for name, adam in self.experiment.optimizers[GROUP].items()
        }


def simple_spread(sizes: Mapping[str, Any]) -> Any:
    task = VmasTask.SIMPLE_SPREAD.get_from_yaml()
    task.config |= {"n_agents": sizes["agents"], "max_steps": sizes["horizon"]}
    return task


def config(name: str, sizes: Mapping[str, Any], folder: str) -> ExperimentConfig:
    """Return its settings with the sizes of the driver; all that does not train is off."""
    own, settings = sizes[name], ExperimentConfig.get_from_yaml()
    values = {
        "save_folder": folder,
        "loggers": [],
        "create_json": False,
        "evaluation": False,
        "render": False,
        "checkpoint_interval": 0,
        "max_n_frames": None,
        "max_n_iters": 10**6,
        "share_policy_params": sizes.get("share", True),
        "gamma": sizes.get("gamma", settings.gamma),
        "adam_extra_kwargs": {"fused": True} if sizes["fused"] else {},
        "lr": sizes["lr"],
        "clip_grad_val": sizes["clip"],
        "on_policy_n_envs_per_worker": sizes["worlds"],
        "off_policy_n_envs_per_worker": sizes["worlds"],
    }
    if name == "mappo":
        frames = sizes["worlds"] * own["rollout_steps"]
        values |= {
            "on_policy_collected_frames_per_batch": frames,
            "on_policy_n_minibatch_iters": own["epochs"],
            "on_policy_minibatch_size": frames // own["minibatches"],
        }
    else:
        values |= {
            "off_policy_collected_frames_per_batch": sizes["worlds"] * STEPS,
            "off_policy_n_optimizer_steps": STEPS,
            "off_policy_train_batch_size": own["batch"],
            "off_policy_memory_size": own["capacity"],
            "off_policy_init_random_frames": own["learning_starts"],
        }
    for key, value in values.items():
        setattr(settings, key, value)
    return settings


def score(peer: Peer, sizes: Mapping[str, Any]) -> float:
    def act(obs: Tensor) -> Tensor:
        given = TensorDict({GROUP: TensorDict({"observation": obs}, obs.shape[:2])}, obs.shape[:1])
        with set_exploration_type(ExplorationType.RANDOM), torch.no_grad():
            return peer.experiment.policy(given)[GROUP, "action"].clamp(-1, 1)

    return completion(sizes, act)


def build(sizes: Mapping[str, Any]) -> tuple[dict[str, Any], Calls]:
    calls: dict[str, Callable[[], float]] = {}
    if "task" in sizes:
        torch.manual_seed(sizes["seed"])
        team = Team(sizes["task"], {"agents": sizes["agents"], "reward_scale": sizes["reward_scale"]})
        one = Peer("mappo", sizes, False, team)
        calls["train"] = lambda: seconds(lambda: [one.iteration() for _ in range(sizes["iterations"])])
        parameters, steps = one.parameters(), count_steps(calls, lambda name: one.steps())
        calls["score"] = lambda: score(one, sizes)
    else:
        both = [(name, suffix) for name in ("mappo", "masac") for suffix in ("", ONE_CRITIC)]
        peers = {f"{name}{suffix}": Peer(name, sizes, bool(suffix)) for name, suffix in both}
        for name, peer in peers.items():
            for _ in range(-(-sizes["masac"]["learning_starts"] // (sizes["worlds"] * STEPS))):
                peer.iteration()
            calls[f"{name} update"] = getattr(peer, f"update_{name.partition(',')[0]}")
            calls[f"{name} iteration"] = lambda peer=peer: seconds(peer.iteration)
        one, parameters = peers["mappo"], {name: peer.parameters() for name, peer in peers.items()}
        steps = count_steps(calls, lambda name: peers[name.rpartition(" ")[0]].steps())
    observations = one.experiment.observation_spec[GROUP, "observation"].shape[-1]
    return {
        "versions": versions(PACKAGES),
        "observations": observations,
        "parameters": parameters,
        "steps": steps,
    }, calls


if __name__ == "__main__":
    serve(build)
