"""The decorators reach the registries, refuse what does not fit, and may be executed again."""

import importlib.util
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, Literal

import pytest
import torch
from annotated_types import Ge
from torch import Tensor

import uavlab as ul
from tests.support.registries import outside, registered_outside
from uavlab import benchmarks as suites
from uavlab.core.errors import ConfigError
from uavlab.core.registry import ENVIRONMENTS, LEARNERS, SCENES
from uavlab.experiment.config import configure
from uavlab.experiment.names import PRESETS
from uavlab.experiment.run import Run
from uavlab.runtime.toggles import TOGGLES

SPEC = outside.Drift().spec
OWN = '''
"""A user's file."""

from dataclasses import dataclass

import uavlab as ul
from tests.support.outside import Drift, Reinforce, ReinforceConfig


@ul.env("own")
@dataclass(frozen=True)
class Own(Drift):
    """Drift by another name."""


@ul.baseline("own", "still")
def still(env, state, noise):
    return 0 * noise[..., None]


@ul.learner("own_learner", settings=ReinforceConfig, collector="on_policy")
class OwnLearner(Reinforce):
    """Reinforce by another name."""


@ul.toggle("own_toggle", kind=int, default=1, about="Nothing.")
def own_toggle(fn, value, name):
    return fn


@ul.suite("own_suite", about="nothing")
def own_suite(rounds, device):
    return {"rows": []}


@ul.scene(Own)
def draw(env, states):
    return None


ul.preset("own_quick", "own", {"updates": 7}, about="Own.")
'''


UNREGISTERED = """
from dataclasses import dataclass
from tests.support.outside import Drift

@dataclass(frozen=True)
class Breeze(Drift):
    wind: float = {wind}

Breeze.strength = {wind}
"""


@pytest.fixture(autouse=True)
def own_registries() -> Iterator[None]:
    """Forget afterwards what a test registers."""
    with registered_outside():
        yield


@pytest.fixture
def own_file(tmp_path: Path) -> Path:
    path = tmp_path / "own_file.py"
    path.write_text(OWN)
    return path


def execute(path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Execute a file as a module of this name, as ``python FILE``, ``import`` and ``importlib.reload`` do."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # which Python would take for a file of the same second
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)  # type: ignore[union-attr]
    return module


class TestExecutedAgain:
    def test_a_file_that_is_executed_and_imported_counts_once(
        self, own_file: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        first = execute(own_file, "own_main", monkeypatch)
        second = execute(own_file, "own_file", monkeypatch)
        assert second.Own is first.Own is ENVIRONMENTS["own"].kind
        assert ENVIRONMENTS["own"].baselines.keys() == {"still"}
        assert issubclass(LEARNERS["own_learner"], first.OwnLearner)
        assert TOGGLES["own_toggle"].wrap is first.own_toggle

    def test_a_module_that_is_executed_again_replaces_its_entries(
        self, own_file: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        first = execute(own_file, "own_file", monkeypatch)
        own_file.write_text(OWN.replace('"updates": 7', '"updates": 8'))
        second = execute(own_file, "own_file", monkeypatch)
        assert second.Own is ENVIRONMENTS["own"].kind is not first.Own
        assert ENVIRONMENTS["own"].baselines == {"still": second.still}
        assert suites.REGISTRY["own_suite"].function is second.own_suite
        assert configure("own_quick").run.updates == 8

    def test_another_file_replaces_entries_with_a_warning(
        self, own_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        execute(own_file, "own_file", monkeypatch)
        (tmp_path / "other.py").write_text(OWN.partition("@ul.learner")[0])
        with pytest.warns(
            UserWarning, match=r"the environment 'own' is now Own of .*other.py, no longer Own of .*own_f"
        ):
            other = execute(tmp_path / "other.py", "other", monkeypatch)
        assert ENVIRONMENTS["own"].kind is other.Own
        assert ENVIRONMENTS["own"].baselines == {"still": other.still}

    def test_without_a_file_the_module_itself_is_the_place(self, monkeypatch: pytest.MonkeyPatch) -> None:
        cells = ModuleType("cells")  # as __main__ in a notebook
        monkeypatch.setitem(sys.modules, "cells", cells)
        classes = []
        for _ in range(2):
            exec(OWN, cells.__dict__)
            classes.append(cells.Own)
        assert ENVIRONMENTS["own"].kind is classes[1] is not classes[0]

    def test_a_class_that_is_not_registered_trains_as_it_is_now(self, monkeypatch: pytest.MonkeyPatch) -> None:
        cells = ModuleType("cells")
        monkeypatch.setitem(sys.modules, "cells", cells)
        runs = []
        for wind in (0.25, 0.5):
            exec(UNREGISTERED.format(wind=wind), cells.__dict__)
            runs.append(ul.start(cells.Breeze(), settings={"worlds": 2, "learner": "reinforce"}))
        assert [run.config.env.wind for run in runs] == [0.25, 0.5]
        assert [type(run.config.env).strength for run in runs] == [0.25, 0.5]  # the second class, not the first


class TestEnv:
    def test_a_plain_class_becomes_a_frozen_dataclass_with_settings(self) -> None:
        @ul.env("plain")
        class Plain(outside.Drift):
            strength: float = 0.5

        assert Plain(strength=0.25) == Plain(0.1, 0.25)
        assert configure("plain", {"strength": 0.75}).env == Plain(strength=0.75)

    def test_names_of_the_package_and_of_others_are_refused(self) -> None:
        with pytest.raises(ConfigError, match="the environment 'mapping' is already Mapping"):
            ul.env("mapping")(replace_name(outside.Drift))
        with pytest.raises(ConfigError, match=r"env: got Drift.*no class; decorate a class"):
            ul.env("object")(outside.Drift())  # type: ignore[type-var]
        with pytest.raises(ConfigError, match="env: 'mapping_quick' is the name of a preset; choose another name"):
            ul.env("mapping_quick")
        with pytest.raises(ConfigError, match="env: 'mapping_quick' is the name of a preset; choose another name"):
            ul.start(type("mapping_quick", (outside.Drift,), {"__module__": __name__})())

    def test_a_dataclass_that_can_change_is_refused(self) -> None:
        loose = dataclass(type("Loose", (), {"__module__": __name__, "__annotations__": {"wind": float}, "wind": 0.1}))
        for call in (lambda: ul.env("loose")(loose), lambda: ul.start(loose())):
            with pytest.raises(ConfigError, match="env: objects of Loose can change; write @dataclass"):
                call()

    def test_a_field_without_a_default_is_refused(self) -> None:
        class Bare:
            strength: float

        class Listed(outside.Drift):
            speeds: tuple[float, ...] = field(default_factory=tuple)

        for cls, name in ((Bare, "Bare.strength"), (Listed, "Listed.speeds")):
            with pytest.raises(ConfigError, match=f"{name}: a setting without a default; give it one"):
                ul.env("bare")(cls)
        assert "bare" not in ENVIRONMENTS


def replace_name(cls: type) -> type:
    return dataclass(frozen=True)(type("Other", (cls,), {"__module__": __name__}))


class TestBaseline:
    def test_its_own_name_is_the_default(self) -> None:
        @ul.baseline("drift")
        def pushed(env: Any, state: Any, noise: Tensor) -> Tensor:
            return torch.ones_like(noise)[..., None]

        assert ENVIRONMENTS["drift"].baselines["pushed"] is pushed
        assert ENVIRONMENTS["drift"].baselines["still"] is outside.still

    def test_an_unknown_environment_and_a_taken_name_are_refused(self) -> None:
        with pytest.raises(ConfigError, match=r"^baseline: unknown environment 'drif' \(did you mean 'drift'\?\)"):
            ul.baseline("drif", "x")
        with pytest.raises(ConfigError, match="drift has 'still', still; choose another name"):
            ul.baseline("drift", "still")(lambda env, state, noise: noise)


class TestLearner:
    def test_defaults_come_from_the_class(self) -> None:
        entry = LEARNERS["reinforce"]
        config = outside.ReinforceConfig()
        assert entry.size(config, replace(SPEC, obs=3, action=2)) == 6  # a linear policy of 3 features, 2 actions
        theta = torch.tensor([[[2.0]], [[-3.0]]])
        action = entry.load_policy(config, SPEC, SPEC, theta)(torch.full((2, 1, 2, 1), 0.25), None)
        expected = torch.tensor([0.5, -0.75]).tanh()[:, None, None, None].expand(2, 1, 2, 1)
        torch.testing.assert_close(action, expected)
        assert entry.inapplicable.keys() == {"update", "acting"}

    def test_what_it_fits_follows_moves(self) -> None:
        maps, either = replace(SPEC, choices=4, side=3), LEARNERS["reinforce"].unsupported
        ul.learner("mover", moves=True, collector="on_policy")(outside.Reinforce)
        assert (either(SPEC), LEARNERS["mover"].unsupported(maps)) == (None, None)
        assert either(maps) == "its agents choose among moves, this learner's actions are continuous"
        assert LEARNERS["mover"].unsupported(SPEC) == "its agents do not choose moves on maps"
        assert either(replace(SPEC, side=3)) == "its agents observe maps, this learner takes vectors"
        seen = "its agents observe features beside their maps, this learner takes maps alone"
        assert LEARNERS["mover"].unsupported(replace(maps, features=2)) == seen
        assert either((60, 5)) == "it has no team of agents"

    def test_a_policy_acts_in_a_team_like_its_own(self) -> None:
        ul.learner("strict")(outside.Reinforce)
        LEARNERS["strict"].require_same(None, SPEC, SPEC)
        with pytest.raises(ConfigError) as error:
            LEARNERS["strict"].require_same(None, SPEC, replace(SPEC, agents=3, groups=(0, 0, 0)))
        with pytest.raises(ConfigError, match="trained on agents=2"):  # as in `run.policy(env)`
            LEARNERS["strict"].load_policy(None, SPEC, replace(SPEC, agents=1, groups=(0,)), torch.ones(1, 1, 1))
        assert str(error.value) == (
            "policy: trained on agents=2, groups=(0, 0), to be used with agents=3, groups=(0, 0, 0); expected the "
            "same, or a learner registered with `require_same=`."
        )

    def test_a_learner_without_settings_trains_from_replay(self) -> None:
        @ul.learner("mover")
        class Mover(ul.Learner):
            """Minimizes the mean square of its actions; it names three of the arguments."""

            def __init__(self, inputs: Any, rng: ul.Streams, rt: ul.Runtime) -> None:
                self.runs, self.inputs = len(rng.seeds), inputs
                self.actor = rt.grad(rng.normal("actor", 1), 1e-2, None)

            def policy(self, spec: ul.EnvSpec, explore: bool = False) -> ul.Policy:
                return lambda obs, noise: self.actor.parameter.detach()[:, None, None].expand(*obs.shape).tanh()

            def update(self, batch: ul.Batch, noise: None) -> ul.Update:
                metrics, _ = self.actor(
                    lambda theta: (theta.square().sum(), {"size": theta.detach().square()[:, 0]}), self.actor.parameter
                )
                return ul.Update(metrics)

        small = {"learner": "mover", "updates": 3, "worlds": 2, "batch": 4, "learning_starts": 8, "capacity": 16}
        run = Run(configure("drift", small))
        before = run.learner.parameters()
        for _ in run.train():
            pass
        assert run.learner.inputs.spread.shape == (1, 2, 1)  # measured
        assert (run.learner.parameters().abs() < before.abs()).all()

    def test_what_a_class_lacks_is_refused(self) -> None:
        class NoUpdate(ul.Learner):
            runs = 1

            def policy(self, spec: Any, explore: bool = False) -> ul.Policy:
                raise NotImplementedError

        class NoRuns(outside.Reinforce):
            def __init__(self) -> None:
                """Keep nothing."""

        for cls, message in (
            (NoUpdate, "learner: NoUpdate has no update; add a method update"),
            (NoRuns, "learner: NoRuns has no runs; add runs = len"),
        ):
            ul.learner(cls.__name__)(cls)
            with pytest.raises(ConfigError, match=message):
                LEARNERS[cls.__name__].size(None, SPEC)

    def test_parameters_of_another_kind_need_a_function(self) -> None:
        class Doubled(outside.Reinforce):
            def parameters(self) -> Tensor:
                return 2 * super().parameters()

        ul.learner("doubled_learner", settings=outside.ReinforceConfig)(Doubled)
        with pytest.raises(ConfigError, match="parameters of Doubled are not those of its first gradient step"):
            LEARNERS["doubled_learner"].load_policy(outside.ReinforceConfig(), SPEC, SPEC, torch.ones(1, 1, 1))

    def test_wrong_arguments_are_refused_at_once(self) -> None:
        @dataclass(frozen=True)
        class Rates:
            lr: float

        class Misspelt(outside.Reinforce):
            def __init__(self, conifg: Any, rng: ul.Streams) -> None:
                """Build nothing."""

        with pytest.raises(ConfigError, match=r"Misspelt needs the argument 'conifg' \(did you mean 'config'\?\)"):
            ul.learner("x")(Misspelt)
        with pytest.raises(ConfigError, match=r"settings is .*Misspelt.*; expected a class with @dataclass"):
            ul.learner("x", settings=Misspelt)
        with pytest.raises(ConfigError, match=r"unknown collector 'onpolicy' \(did you mean 'on_policy'\?\)"):
            ul.learner("x", collector="onpolicy")
        with pytest.raises(ConfigError, match="replay holds no maps and moves; expected collector='on_policy'"):
            ul.learner("x", moves=True)
        with pytest.raises(ConfigError, match=r"Rates.lr: a setting without a default; give it one"):
            ul.learner("x", settings=Rates)(outside.Reinforce)
        assert "x" not in LEARNERS


class TestOthers:
    def test_a_toggle_wraps_kernels_and_is_a_setting(self) -> None:
        @ul.toggle("tripled", kind=Literal["off", "on"], about="Triples a result.", equality="exact")
        def tripled(fn: Any, value: str, name: str) -> Any:
            return lambda *args: 3 * fn(*args)

        assert (TOGGLES["tripled"].default, TOGGLES["tripled"].equality, TOGGLES["tripled"].seam) == (
            "off", "exact", "kernel"
        )  # fmt: skip
        toggles = configure("drift", {"tripled": "on"}).toggles
        assert ul.Runtime(torch.device("cpu"), toggles).kernel(lambda x: x + 1, "act")(1) == 6
        with pytest.raises(ConfigError, match="the toggle 'compile' is already"):
            ul.toggle("compile", kind=int, default=1, about="x")(tripled)
        for kind in (int, Annotated[int, Ge(1)]):
            with pytest.raises(ConfigError, match="toggle 'count': a number without a default; add default="):
                ul.toggle("count", kind=kind, about="x")(tripled)

    def test_a_toggle_that_is_registered_again_has_its_new_values(self) -> None:
        for values in (Literal["off", "on"], Literal["off", "on", "twice"]):
            ul.toggle("again", kind=values, about="x")(outside.doubled)
            configure("drift", {"again": "on"})
        assert configure("drift", {"again": "twice"}).toggles.again == "twice"

    def test_a_preset_is_checked_when_it_is_used(self) -> None:
        ul.preset("drift_wrong", "drift", {"wnd": 1.0})
        with pytest.raises(ConfigError, match=r"unknown setting 'wnd' \(did you mean 'wind'\?\)"):
            configure("drift_wrong")
        with pytest.raises(ConfigError, match=r"^preset: unknown environment 'drif' \(did you mean 'drift'\?\)"):
            ul.preset("drift_other", "drif")
        assert PRESETS["drift_wrong"].about == "drift with other settings."
        with pytest.raises(ConfigError, match="the preset 'mapping_quick' is already"):
            ul.preset("mapping_quick", "drift")
        with pytest.raises(ConfigError, match="preset: 'drift' is the name of another environment"):
            ul.preset("drift", "leader_follower")

    def test_a_picture_belongs_to_a_class(self) -> None:
        assert SCENES[outside.Drift] is outside.draw
        with pytest.raises(ConfigError, match="scene: Drift is drawn by draw already; subclass it"):
            ul.scene(outside.Drift)(lambda env, states: None)

    @pytest.mark.parametrize("decorator", [ul.env, ul.learner, ul.baseline, ul.scene])
    def test_a_decorator_needs_its_arguments(self, decorator: Any) -> None:
        def decorated() -> None:
            """Stands for a class or function below ``@ul.env`` without parentheses."""

        with pytest.raises(ConfigError, match=r"(env|learner|baseline|scene): .*<function "):
            decorator(decorated)


def test_every_public_name_is_there() -> None:
    missing = [name for name in ul.__all__ if name not in ("Run",) and getattr(ul, name, None) is None]
    assert missing == []
    assert {*ul.__all__} == {*ul._MODULES, "__version__"}
