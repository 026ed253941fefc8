"""Print the index of names that a command line may hold; ``--write`` puts it into its file.

Commands answer a mistyped name from this index before they import torch (``uavlab/experiment/names.py``).
"""

import json
import sys
from typing import Any

import torch

from uavlab.benchmarks.registry import suites
from uavlab.experiment.build import task
from uavlab.experiment.config import parts
from uavlab.experiment.names import INDEX
from uavlab.experiment.presets import presets
from uavlab.experiment.settings import settings_of
from uavlab.runtime.toggles import TOGGLES, toggle_presets


def collect() -> dict[str, Any]:
    """Return the names that the package registers."""
    known = presets()
    return {
        "presets": {name: [preset.about, preset.env] for name, preset in known.items()},
        "settings": {name: settings(name) for name in sorted({preset.env for preset in known.values()})},
        "toggles": list(TOGGLES),
        "sets": list(toggle_presets(torch.device("cpu"))),
        "suites": {name: [suite.about, [vars(option) for option in suite.options]] for name, suite in suites().items()},
    }


def settings(environment: str) -> list[str]:
    """Return the names of all settings of an environment with its default learner."""
    own = parts(task(environment).settings)
    names = [setting.name for part in own for setting in settings_of(part)]
    return [*names, *(f"eval_{setting.name}" for setting in settings_of(own[-1]))]


if __name__ == "__main__":
    text = json.dumps(collect(), indent=1) + "\n"
    if "--write" in sys.argv[1:]:
        INDEX.write_text(text, encoding="utf-8")
    else:
        print(text, end="")
