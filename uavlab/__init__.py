"""uavlab: batched multi-UAV reinforcement learning with torch, and measurements of each of its optimizations.

    import uavlab as ul

    run = ul.train("leader_follower_quick", updates=2000)   # a preset, or an environment of your own
    print(ul.evaluate(run, episodes=200))                   # figures with 95 % intervals
    act = run.policy()                                      # observations (B, A, O) -> actions (B, A, D)
    ul.fly(run, "flight.html")                              # one animated flight

Names are imported when they are first used; ``help(uavlab.train)`` and so on describe them.
"""

import importlib
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from uavlab.api import (
        Run,
        Scores,
        TeamPolicy,
        TrainedPolicy,
        bench,
        evaluate,
        export,
        fly,
        load,
        make,
        profile,
        resume,
        start,
        train,
    )
    from uavlab.benchmarks.registry import suite
    from uavlab.core.protocols import Env, Learner, Policy
    from uavlab.core.registry import Resume, scene
    from uavlab.core.rng import Streams
    from uavlab.core.types import Batch, EnvSpec, MapObs, Metric, Rollout, Transition, Update, tensors
    from uavlab.registration import baseline, env, learner, preset, toggle
    from uavlab.runtime.runtime import Runtime
    from uavlab.testing import check_env, check_learner

# Idle OpenMP threads that spin starve a shared core; the variable must be set before torch is imported.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# Large tensors come in large pages where Linux grants them: fresh small ones cost three times what is written to them.
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")

__version__ = "0.1.0"

_MODULES = {
    **dict.fromkeys(("train", "start", "resume", "load", "evaluate", "fly", "export", "make"), "uavlab.api"),
    **dict.fromkeys(("bench", "profile"), "uavlab.api"),
    **dict.fromkeys(("Run", "Scores", "TeamPolicy", "TrainedPolicy"), "uavlab.api"),
    **dict.fromkeys(("baseline", "env", "learner", "preset", "toggle"), "uavlab.registration"),
    **{"scene": "uavlab.core.registry", "suite": "uavlab.benchmarks.registry"},
    **dict.fromkeys(("check_env", "check_learner"), "uavlab.testing"),
    **{**dict.fromkeys(("Env", "Learner", "Policy"), "uavlab.core.protocols"), "Streams": "uavlab.core.rng"},
    **dict.fromkeys(("Batch", "EnvSpec", "MapObs", "Metric", "Rollout", "Transition", "Update"), "uavlab.core.types"),
    **{"tensors": "uavlab.core.types", "Resume": "uavlab.core.registry", "Runtime": "uavlab.runtime.runtime"},
}
"""The public names, and the modules that define them."""

__all__ = [
    "Batch", "Env", "EnvSpec", "Learner", "MapObs", "Metric", "Policy", "Resume", "Rollout", "Run", "Runtime",
    "Scores", "Streams", "TeamPolicy", "TrainedPolicy", "Transition", "Update", "__version__", "baseline", "bench",
    "check_env", "check_learner", "env", "evaluate", "export", "fly", "learner", "load", "make", "preset",
    "profile", "resume", "scene", "start", "suite", "tensors", "toggle", "train",
]  # fmt: skip


if not TYPE_CHECKING:  # so that type checkers report names that do not exist

    def __getattr__(name: str) -> Any:
        """Import a public name when it is first used, so that ``import uavlab`` does not import torch."""
        if name not in _MODULES:
            raise AttributeError(f"module 'uavlab' has no attribute {name!r}; public names: {', '.join(_MODULES)}.")
        value = globals()[name] = getattr(importlib.import_module(_MODULES[name]), name)
        return value


def __dir__() -> list[str]:
    """Return the public names too, for completion."""
    return sorted({*globals(), *__all__})
