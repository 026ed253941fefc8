"""uavlab: batched multi-UAV reinforcement learning with torch, and measurements of each of its optimizations.

    import uavlab as ul

    run = ul.train("leader_follower_quick", updates=2000)   # a preset, or an environment of your own
    print(ul.evaluate(run, episodes=200))                   # figures with 95 % intervals
    act = run.policy()                                      # observations (B, A, O) -> actions (B, A, D)
    ul.fly(run, "flight.html")                              # one animated flight

A run         train (to the end), start (step by step), resume, Run
Its policies  load (TrainedPolicy), run.policy (TeamPolicy), evaluate (Scores), fly, export (.pt2, .onnx or a folder)
Its page      report (of one run or several; seeds of equal settings are pooled)
Many runs     sweep (SweepTable): presets, settings and seeds of one file, at once, to one table and one page
Measure       bench (suites of benchmarks), profile (where the time of an update goes, and which toggles help), fit
              (Fit: how many worlds a run should have here, and the largest batch that fits)
Environments  make (by name), env (register a class), Env, EnvSpec, Metric, ChoiceObs, MapObs, tensors, constant
              (numbers on a device), check_env, baseline, scene, external (of Gymnasium and PettingZoo)
Elsewhere     to_pettingzoo, to_gymnasium, to_torchrl: environments in these libraries
Groups        Group, team_spec (the spec of groups that differ), join_groups, split_groups, cross_play (CrossPlay)
Sizes         transfer (Transfer): a policy in teams of other sizes; Entities (observations that list things)
Learners      learner (register a class), Learner, Policy, Resume, Runtime, Streams, StackedMLP, Batch, Transition,
              Rollout, Rows, Update, check_learner
Extensions    toggle, suite, preset (register), main (the command line, for the end of a file)
Errors        UavlabError: ConfigError, FileError, DivergedError, ResourceError, MissingPackageError

``help(uavlab.train)`` and so on describe them; names are imported when they are first used.
"""

import importlib
import os
from typing import TYPE_CHECKING, Any

from uavlab.core.installation import VERSION

if TYPE_CHECKING:
    from uavlab.api import (
        cross_play,
        evaluate,
        export,
        fit,
        fly,
        load,
        make,
        profile,
        report,
        resume,
        start,
        sweep,
        train,
        transfer,
    )
    from uavlab.benchmarks import bench, suite
    from uavlab.cli import main
    from uavlab.core.errors import (
        ConfigError,
        DivergedError,
        FileError,
        MissingPackageError,
        ResourceError,
        UavlabError,
    )
    from uavlab.core.protocols import Env, Policy
    from uavlab.core.registry import Resume, scene
    from uavlab.core.rng import Streams
    from uavlab.core.types import (
        Batch,
        ChoiceObs,
        Entities,
        EnvSpec,
        Group,
        MapObs,
        Metric,
        Rollout,
        Transition,
        Update,
        join_groups,
        split_groups,
        team_spec,
        tensors,
    )
    from uavlab.experiment.cross_play import CrossPlay
    from uavlab.experiment.fit import Fit
    from uavlab.experiment.policy import TeamPolicy, TrainedPolicy
    from uavlab.experiment.run import Run
    from uavlab.experiment.scores import Scores
    from uavlab.experiment.transfer import Transfer
    from uavlab.interop import to_gymnasium, to_pettingzoo, to_torchrl
    from uavlab.learners.learner import Learner
    from uavlab.nets.mlp import StackedMLP
    from uavlab.ops.geometry import constant
    from uavlab.registration import baseline, env, learner, preset, toggle
    from uavlab.runtime.grad_step import Rows
    from uavlab.runtime.runtime import Runtime
    from uavlab.sweeps.table import SweepTable
    from uavlab.testing import check_env, check_learner
    from uavlab.workers.registration import external

__version__ = VERSION

# Idle OpenMP threads that spin starve a shared core; the variable must be set before torch is imported.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# Large tensors come in large pages where Linux grants them: fresh small ones cost three times what is written to them.
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")


_NAMES = {
    "api": (
        "cross_play", "evaluate", "export", "fit", "fly", "load", "make", "profile", "report", "resume", "start",
        "sweep", "train", "transfer",
    ),
    "benchmarks": ("bench", "suite"),
    "cli": ("main",),
    "core.errors": (
        "UavlabError", "ConfigError", "FileError", "DivergedError", "ResourceError", "MissingPackageError"
    ),
    "core.protocols": ("Env", "Policy"),
    "core.registry": ("Resume", "scene"),
    "core.rng": ("Streams",),
    "core.types": (
        "Batch", "ChoiceObs", "Entities", "EnvSpec", "Group", "MapObs", "Metric", "Rollout", "Transition", "Update",
        "join_groups", "split_groups", "team_spec", "tensors",
    ),
    "experiment.cross_play": ("CrossPlay",),
    "experiment.fit": ("Fit",),
    "experiment.policy": ("TeamPolicy", "TrainedPolicy"),
    "experiment.run": ("Run",),
    "experiment.scores": ("Scores",),
    "experiment.transfer": ("Transfer",),
    "workers.registration": ("external",),
    "interop": ("to_gymnasium", "to_pettingzoo", "to_torchrl"),
    "learners.learner": ("Learner",),
    "nets.mlp": ("StackedMLP",),
    "ops.geometry": ("constant",),
    "registration": ("baseline", "env", "learner", "preset", "toggle"),
    "runtime.grad_step": ("Rows",),
    "runtime.runtime": ("Runtime",),
    "sweeps.table": ("SweepTable",),
    "testing": ("check_env", "check_learner"),
}  # fmt: skip
_MODULES = {name: f"uavlab.{module}" for module, names in _NAMES.items() for name in names}
"""The public names, and the modules that define them."""

__all__ = [
    "Batch", "ChoiceObs", "ConfigError", "CrossPlay", "DivergedError", "Entities", "Env", "EnvSpec", "FileError", "Fit",
    "Group", "Learner", "MapObs", "Metric", "MissingPackageError", "Policy", "ResourceError", "Resume", "Rollout",
    "Rows", "Run", "Runtime", "Scores", "StackedMLP", "Streams", "SweepTable", "TeamPolicy", "TrainedPolicy",
    "Transfer", "Transition", "UavlabError", "Update", "__version__", "baseline", "bench", "check_env",
    "check_learner", "constant", "cross_play", "env", "evaluate", "export", "external", "fit", "fly", "join_groups",
    "learner", "load", "main", "make", "preset", "profile", "report", "resume", "scene", "split_groups", "start",
    "suite", "sweep", "team_spec", "tensors", "to_gymnasium", "to_pettingzoo", "to_torchrl", "toggle", "train",
    "transfer",
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
