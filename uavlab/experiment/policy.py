"""The best policy of a run: loading, acting, flights and export."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from uavlab.core.errors import ConfigError, FileError
from uavlab.core.installation import program
from uavlab.core.protocols import Env, Policy, initial_memory, step_policy
from uavlab.core.rng import Streams, team_noise
from uavlab.core.text import one_line, quote
from uavlab.core.types import NO_FLOATS, EnvSpec, observation_shapes, observation_type, tree_map
from uavlab.envs.autoreset import out_of_time
from uavlab.evaluation import Actor, Planner
from uavlab.experiment import build
from uavlab.experiment.config import Config, Device
from uavlab.experiment.run_dir import read_config, require_empty, require_resumable, write_config
from uavlab.experiment.run_state import RunState
from uavlab.experiment.schedules import Which, require_groups
from uavlab.runtime.runtime import Runtime
from uavlab.runtime.toggles import Toggles
from uavlab.storage import checkpoint
from uavlab.storage.files import read_json, write_json
from uavlab.storage.metrics_log import Recorder


@dataclass(frozen=True)
class TeamPolicy:
    """The policy of one team: a function of the observations of its agents.

    >>> act = run.policy()
    >>> obs = env.observe(env.initial(torch.rand(5, env.spec.initial_noise)))
    >>> act(obs).shape, act(obs, torch.Generator().manual_seed(0)).shape  # mean actions, sampled actions
    (torch.Size([5, 3, 2]), torch.Size([5, 3, 2]))

    A policy with memory (setting ``memory``) keeps none itself: ``start`` returns that of new episodes, and each
    ``step`` returns the next one. Both serve policies without memory, too, whose memory is None.

    >>> memory = act.start(worlds=5)
    >>> for _ in range(3):
    ...     action, memory = act.step(obs, memory)
    >>> action.shape, memory  # this policy has none; set memory[ended] = 0.0 where a world starts anew
    (torch.Size([5, 3, 2]), None)

    Attributes:
        function: The policy with an axis of runs, here 1.
        spec: The team: agents, observations, actions.
        device: Where it acts; observations and noise are moved there.
    """

    function: Policy
    spec: EnvSpec
    device: torch.device

    def __repr__(self) -> str:
        agents, action, moves = self.spec.agents, self.spec.action, self.spec.choices
        acts = f"(B, {agents}) of moves 0 to {moves - 1}" if moves else f"(B, {agents}, {action}) in [-1, 1]"
        seen = ", ".join(f"{name or 'obs'} {_batched(shape)}" for name, shape in observation_shapes(self.spec).items())
        return one_line(f"<TeamPolicy of {agents} agent(s) on {self.device}: {seen} -> {acts}>")

    def __call__(self, obs: Any, generator: torch.Generator | None = None) -> Tensor:
        """Return the actions of all agents, by a policy without memory.

        Args:
            obs: What ``env.observe`` returns for B worlds: (B A O), a ``ChoiceObs`` or a ``MapObs``.
            generator: Source of noise for sampled actions; None for mean actions, or the likeliest moves.

        Returns:
            Actions (B A D) in [-1, 1], or numbers of moves (B A).

        Raises:
            ConfigError: Observations do not fit, or the policy has memory.
        """
        return self.step(obs, None, generator)[0]

    def start(self, worlds: int) -> Float[Tensor, "B A M"] | None:
        """Return the memory of the policy at the start of an episode in each world; None of one without memory."""
        memory = initial_memory(self.function, 1, worlds)
        return None if memory is None else memory[0]

    @torch.no_grad()
    def step(
        self, obs: Any, memory: Float[Tensor, "B A M"] | None, generator: torch.Generator | None = None
    ) -> tuple[Tensor, Float[Tensor, "B A M"] | None]:
        """Return the actions of all agents, and the memory after them.

        Args:
            obs: As for a call.
            memory: Memory of the same worlds: from ``start``, or from their last step.
            generator: As for a call.

        Raises:
            ConfigError: Observations or memory do not fit.
        """
        worlds = self._require_observations(obs)
        self._require_memory(memory, worlds)
        if not (generator is None or isinstance(generator, torch.Generator)):
            raise ConfigError(f"policy: got {quote(generator)}; expected a torch.Generator, or None for mean actions.")
        noise = None if generator is None else team_noise(generator, worlds, self.spec)[None].to(self.device)
        obs = tree_map(lambda leaf: leaf[None].to(self.device), obs)
        before = None if memory is None else memory[None].to(self.device)
        action, after = step_policy(self.function, obs, noise, before)
        return action[0], None if after is None else after[0]

    def _require_memory(self, memory: Any, worlds: int) -> None:
        own = self.start(worlds)
        got = f"{memory.dtype} of shape {tuple(memory.shape)}" if isinstance(memory, Tensor) else quote(memory)
        if own is None and memory is not None:
            raise ConfigError(f"policy: got {got} as memory; expected None, because this policy has none.")
        if own is not None and (
            not isinstance(memory, Tensor) or (memory.shape, memory.dtype) != (own.shape, own.dtype)
        ):
            raise ConfigError(
                f"policy: got {got} as memory; expected {own.dtype} of shape {tuple(own.shape)}. A policy with memory "
                f"starts with memory = act.start({worlds}), then action, memory = act.step(obs, memory) in each step."
            )

    def _require_observations(self, obs: Any) -> int:
        """Return the number of worlds of observations that fit the team."""
        kind, shapes = observation_type(self.spec), observation_shapes(self.spec)
        got, expected = type(obs).__name__, kind.__name__
        if not isinstance(obs, kind):
            raise ConfigError(f"policy: got a {got}; expected a {expected}, as env.observe returns.")
        parts: dict[str, Any] = {"": obs} if kind is Tensor else vars(obs)
        given = [name for name, part in parts.items() if isinstance(part, Tensor)]
        if given != list(shapes):
            texts = f"got a {got} of {', '.join(given)}; expected a {expected} of {', '.join(shapes)}"
            raise ConfigError(f"policy: {texts}, as env.observe returns; others are None.")
        for name, shape in shapes.items():
            part, dtype = parts[name], NO_FLOATS.get(name, torch.float32)
            if part.shape[1:] != shape or part.dtype != dtype:
                text = f"{str(dtype).removeprefix('torch.')} of shape {_batched(shape)}"
                raise ConfigError(f"policy: got observations of {part.dtype}, {tuple(part.shape)}; expected {text}.")
        return len(parts[next(iter(shapes))])


def _batched(shape: Sequence[int]) -> str:
    return f"(B, {', '.join(map(str, shape))})"


@dataclass(frozen=True)
class TrainedPolicy:
    """Settings and the best policy of each seed of a run.

    >>> trained = run.trained()
    >>> trained.updates, trained.score.shape
    ([2, 2], torch.Size([2]))

    Attributes:
        config: Settings of the run.
        rt: Runtime on which the policy acts.
        update: Updates of the checkpoint or run.
        updates: The update of each seed's policy; -1 where the checkpoint does not say.
        parameters: Parameters of K networks for each of R seeds.
        score: Validation score of each seed; -inf if it was never evaluated.
        folder: Folder of the run; None for a run in memory.
    """

    config: Config
    rt: Runtime
    update: int
    updates: Sequence[int]
    parameters: Float[Tensor, "R K P"]
    score: Float[Tensor, " R"]
    folder: Path | None = None

    def __repr__(self) -> str:
        seeds, where = f"{len(self.parameters)} seed(s)", f"in {self.folder or 'memory'}"
        return one_line(f"<TrainedPolicy of {self.config.preset}: {seeds}, updates {list(self.updates)}, {where}>")

    def policy(self, env: Env | None = None, run: int = 0) -> TeamPolicy:
        """Return the policy of one seed for ``env``, by default the evaluation task; the team may differ in size.

        Raises:
            ConfigError: There is no such run, or its policy cannot act in the environment.
        """
        if not 0 <= run < len(self.parameters):
            last = len(self.parameters) - 1
            raise ConfigError(f"policy: run {run} of {len(self.parameters)}; expected 0 to {last}.")
        if not self.config.task.evaluation.flies:
            raise ConfigError(f"policy: {self.config.preset} trains no team that acts; use batched_policy.")
        env = env or self.config.evaluation
        return TeamPolicy(self.batched_policy(env, run), env.spec, self.rt.device)

    def batched_policy(self, env: Env, run: int | None = None, seeds: int | None = None) -> Policy:
        """Return the policies of all seeds, or of one, for ``env``; that of one seed serves as each of ``seeds``."""
        algorithm, learner, trained = self.config.task.algorithm, self.config.learner, self.config.env.spec
        algorithm.require_same(learner, trained, env.spec)
        chosen = self.parameters if run is None else self.parameters[run : run + 1]
        chosen = chosen if seeds in (None, len(chosen)) else chosen.expand(seeds, -1, -1).contiguous()
        return algorithm.load_policy(learner, trained, env.spec, chosen)

    def rows(self) -> list[dict[str, Any]]:
        """Return a row for each logged update and seed of the stored run, as ``Run.rows``.

        Raises:
            FileError: The run is not stored, or a row is damaged.
        """
        if self.folder is None:
            raise FileError("rows: this run is in memory; see its own rows().")
        recorder, run = Recorder(self.folder), self.config.run
        recorder.read()
        return recorder.by_seed(range(run.seed, run.seed + run.runs))


def choose(run: RunState, which: Which) -> TrainedPolicy:
    """Return a policy of a run in this process; before any score it is the newest."""
    newest, score = run.learner.parameters(), run.best_score
    if which == "best":
        updates = torch.where(torch.isinf(score), run.number, run.best_team.updates[:, 0]).tolist()
        return TrainedPolicy(run.config, run.rt, run.number, updates, run.best, score, run.folder)
    groups = require_groups(run.config, run.best_groups) if which == "best_by_group" else None
    updates = [run.number] * len(newest) if groups is None else groups.updates.amax(1).tolist()
    parameters, unknown = newest if groups is None else groups.or_newest(newest), torch.full_like(score, -math.inf)
    return TrainedPolicy(run.config, run.rt, run.number, updates, parameters, unknown, run.folder)


def load(folder: Path, device: Device | None = None, which: Which = "best") -> TrainedPolicy:
    """Load a policy of a run, or of an exported copy; ``device`` replaces the device of its settings."""
    if which not in get_args(Which):
        raise ConfigError(f"load: got which={quote(which)}; expected one of {', '.join(get_args(Which))}.")
    config = read_config(folder)
    run = config.run if device is None else replace(config.run, device=device)
    rt = build.runtime(run, Toggles(threads=config.toggles.threads))
    saved = checkpoint.newest(folder / "checkpoints", only=which)
    require_resumable(saved.path, saved.meta.get("values") or {}, config)
    if which not in saved.groups and which != "best":
        needs = "an environment with group_scores" if which == "best_by_group" else "a run, not an exported copy"
        raise ConfigError(f"{folder}: has no policy {which!r}; it needs {needs}. Use which='best'.")
    runs, best = config.run.runs, saved.groups.get(which, {})
    score = best.get("score", torch.full((runs,), -math.inf))  # only whole teams have one
    if "parameters" not in best or not best["parameters"].isfinite().all() or len(score) != runs:
        raise FileError(f"{saved.path}: keeps no policy of finite numbers; evaluate another run, or train a new one.")
    stored, wanted = best["parameters"].shape, config.task.algorithm.size(config.learner, config.env.spec)
    if len(stored) != 3 or stored[0] != config.run.runs or stored[2] != wanted:
        raise FileError(
            f"{folder}: keeps policies of shape {tuple(stored)}, its settings describe {config.run.runs} run(s) of "
            f"networks with {wanted} parameters; was it written by another version, or its config.json edited?"
        )
    updates = [saved.step] * runs
    if which == "best":
        updates = best_updates(saved.meta, runs)
    elif "updates" in best:
        updates, score = best["updates"].amax(1).tolist(), torch.full((runs,), -math.inf)
    return TrainedPolicy(config, rt, saved.step, updates, best["parameters"].to(rt.device), score, folder)


def best_updates(meta: Mapping[str, Any], runs: int) -> list[int]:
    """Return the updates of each seed's best policy from the meta data of a checkpoint; -1 where they are unknown."""
    updates = meta.get("best_updates")
    known = isinstance(updates, list) and len(updates) == runs and all(type(each) is int for each in updates)
    return updates if known else [-1] * runs  # type: ignore[return-value]


def export(trained: TrainedPolicy, out: Path) -> Path:
    """Write settings and best policy to ``out``, a folder for ``load`` without replay and optimizers, and return it."""
    path = trained.folder and trained.folder / "run.json"
    status = read_json(path) if path and path.exists() else {}
    require_empty(out).mkdir(parents=True, exist_ok=True)
    write_config(out, trained.config)
    if status:
        write_json(out / "run.json", status)
    best = {"best": {"parameters": trained.parameters, "score": trained.score}}
    meta = {"exported": True, "best_updates": trained.updates, "preset": trained.config.preset}
    meta |= {"values": trained.config.values}
    checkpoint.save(out / "checkpoints", trained.update, best, meta, keep=1)
    return out


def fly(
    trained: TrainedPolicy, seed: int, mean_action: bool = False, run: int = 0, env: Env | None = None
) -> Iterator[Any]:
    if not trained.config.task.evaluation.flies:
        raise ConfigError(f"fly: {trained.config.preset} has no team that flies; see `{program()} evaluate`.")
    env = env or trained.config.evaluation
    yield from fly_policy(env, trained.policy(env, run).function, Streams([seed], trained.rt.device), mean_action)


@torch.no_grad()
def fly_policy(env: Env, policy: Policy | Planner, rng: Streams, mean_action: bool = False) -> Iterator[Any]:
    """Fly one episode; yield the state of its world before the first step and after each step."""
    spec = env.spec
    state = env.initial(rng.uniform("fly.start", 1, spec.initial_noise)[0])
    act = Actor(env, policy, rng, 1, mean_action, "fly")
    yield state
    for _ in range(spec.horizon):
        state = env.transition(state, act(state, env.observe(state)), rng.uniform("fly.step", 1, spec.step_noise)[0])
        yield state
        if env.terminated(state).all() or out_of_time(env, state).all():
            return
