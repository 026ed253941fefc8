"""Whether a stage of a curriculum is stepped as its task is, so that one environment can step the worlds of all."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from uavlab.core.rng import Streams, acting_noise
from uavlab.core.types import leaves, tree_map
from uavlab.evaluation import random_policy

TRIED = 32  # worlds, and steps of each


def first_difference(env: Any, stage: Any) -> str:
    """Return the first function whose results differ in worlds that start at a stage; empty if there is none.

    Worlds are stepped by random actions.

    Args:
        env: The task.
        stage: The same task with other settings.
    """
    rng, spec = Streams([0]), env.spec
    state = stage.initial(rng.uniform("start", TRIED, spec.initial_noise)[0])
    for _ in range(min(spec.horizon, TRIED)):
        seen = tree_map(lambda leaf: leaf[None], env.observe(state))
        action = random_policy(seen, acting_noise(rng, "act", TRIED, spec))[0]
        noise = rng.uniform("step", TRIED, spec.step_noise)[0]
        after = env.transition(state, action, noise)
        results = [_results(each, state, action, noise, after) for each in (env, stage)]
        for (name, one), (_, other) in zip(*results, strict=True):
            if not torch.equal(one, other):
                return name
        state = after
    return ""


def _results(env: Any, state: Any, action: Tensor, noise: Tensor, after: Any) -> Iterator[tuple[str, Tensor]]:
    """Yield all tensors that the functions of an environment return, each with the name of the function."""
    for _, leaf in leaves(env.transition(state, action, noise)):
        yield "transition", leaf
    for _, leaf in leaves(env.observe(after)):
        yield "observe", leaf
    yield "reward", env.reward(state, action, after)
    yield "terminated", env.terminated(after)
    for value in env.measure(state, action, after).values():
        yield "measure", value
