"""The groups of the third part. Cases come from the registries; imports are late, because packages may be missing."""

import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from functools import cache, partial
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from tools.gpu_check import measured  # noqa: F401 - it registers the groups of parts 1 and 2
from tools.gpu_check.worker import GROUPS, ROOT, Case, NotTried, Result, group  # noqa: F401 - the driver takes GROUPS from here

REAL = {"hidden": 256, "batch": 128, "worlds": 64, "capacity": 65536}  # sizes of the cycles that are timed on a GPU
WARM = 16  # cycles: the first rows of replay, and what graphs record
GPU_TEST = re.compile(r"pytest\.mark\.gpu\b|import .*\b(DEVICES|GPU)\b")
COVERED = " and ".join(  # groups of their own
    f"not {each}"
    for each in ("test_updates_equal_the_cpus", "test_a_run_has_finite", "test_worlds_agree", "test_a_run_is_saved")
)


@group(6, "packages, imports, the device")
def environment(device: str, folder: Path) -> Iterator[Case]:
    """Yield a case for each package that the project names, for each package of the tree, and for the device."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = {**project["optional-dependencies"], "": project["dependencies"]}
    extras.pop("all")
    first = {line: extra for extra, lines in sorted(extras.items(), reverse=True) for line in lines}
    for line, extra in sorted(first.items(), key=lambda each: each[1]):  # two extras may need the same package
        yield Case(f"package {line}", partial(package, line.partition(">=")[0], extra))
    for root in (ROOT / "uavlab", ROOT / "notebooks" / "uavlab_lab"):
        for part in sorted({path.parent for path in root.glob("*/__init__.py")}):
            yield Case(f"import {root.name}.{part.name}", partial(import_all, part, root.parent))
    yield Case(f"device {device}", partial(describe_device, device))


def package(name: str, extra: str) -> str:
    """Return a package's version; only one of an extra may be missing."""
    try:
        return version(name)
    except PackageNotFoundError as error:
        if extra:
            raise NotTried(f"not installed; the extra {extra!r} brings it") from error
        raise RuntimeError("not installed, and nothing runs without it") from error


def import_all(part: Path, root: Path) -> str:
    names = [".".join(path.relative_to(root).with_suffix("").parts) for path in sorted(part.rglob("*.py"))]
    for name in names:
        import_module(name.removesuffix(".__init__"))
    return f"{len(names)} modules"


def describe_device(device: str) -> str:
    """Return the device with torch's and CUDA's version, and how products in float32 are computed by default."""
    import torch

    if device == "cpu":
        return f"torch {torch.__version__}; a dry run, no GPU"
    properties = torch.cuda.get_device_properties(0)
    flags = f"TF32 by default: products {torch.backends.cuda.matmul.allow_tf32}, convolutions "
    flags += str(torch.backends.cudnn.allow_tf32)
    size = f"{properties.total_memory / 1e9:.0f} GB, capability {properties.major}.{properties.minor}"
    return f"{properties.name}, {size}, torch {torch.__version__}, CUDA {torch.version.cuda}, {flags}"


def label(task: tuple[str, str], changes: Any = ()) -> str:
    return ", ".join([*task, *(f"{name}={value}" for name, value in dict(changes).items())])


@group(8, "one update and six equal the CPU's in float64")
def updates(device: str, folder: Path) -> Iterator[Case]:
    from tests.support import device_checks as checks

    def equal(task: tuple[str, str], changes: dict[str, Any]) -> Result:
        error, reasons = checks.update_error(*task, device, changes)
        if not error <= checks.EXACT:
            raise ArithmeticError(f"apart by {error:.1e}, expected at most {checks.EXACT:.0e}")
        return f"apart by {error:.1e}", reasons

    for task in checks.tasks():
        for changes in checks.exact_toggles(*task):
            yield Case(label(task, changes), partial(equal, task, changes))


@group(4, "worlds, and convolutions in float32, equal the CPU's")
def worlds(device: str, folder: Path) -> Iterator[Case]:
    from tests.support import device_checks as checks
    from uavlab.nets.cnn import WIDE

    def same(env: Any, steps: int) -> str:
        if names := checks.different_leaves(env, device, steps):
            raise ArithmeticError(f"differ after {steps} steps: {', '.join(names)}")
        return f"{steps} steps"

    def single(width: int) -> str:
        error = checks.convolution_error(device, width)
        if error > checks.TF32:
            raise ArithmeticError(f"relative error {error:.1e}: TF32 in spite of precision=fp32")
        return f"relative error {error:.1e}"

    for name, entry in checks.ENVIRONMENTS.items():
        if hasattr(entry.kind, "transition"):
            yield Case(f"{name}, small", partial(same, checks.small(name, None, "cpu").env, 20))
            yield Case(f"{name}, defaults", partial(same, entry.kind(), 5))
    for width in (32, WIDE):
        yield Case(f"convolutions of {width} channels in float32", partial(single, width))


@group(16, "runs with each set of toggles, and with each value alone")
def runs(device: str, folder: Path) -> Iterator[Case]:
    import torch

    from tests.support import device_checks as checks
    from uavlab.runtime.toggles import toggle_presets

    for task in checks.tasks():
        sets = [(f"{label(task)}, set {name}", values) for name, values in toggle_presets(torch.device(device)).items()]
        singles = [(label(task, changes), changes) for changes in checks.single_toggles(*task)]
        for name, values in sets + singles:
            if values.get("compile", "off") == "off":
                yield Case(name, partial(finite_run, device, task, values))


def finite_run(device: str, task: tuple[str, str], changes: dict[str, Any]) -> Result:
    from tests.support import device_checks as checks

    run = checks.train(checks.small(*task, device, **changes))
    return f"{run.number} updates", run.rt.fell_back


@group(6, "run folders: resume, evaluate, export, fly; baselines, and predictions along a log")
def folders(device: str, folder: Path) -> Iterator[Case]:
    from tests.support import device_checks as checks
    from uavlab import api
    from uavlab.experiment import policy, scores
    from uavlab.experiment.run import Run

    place = Path(tempfile.mkdtemp(prefix="gpu_check"))
    trained = cache(lambda task: checks.train(checks.small(*task, device), place / label(task)))

    def resumed(task: tuple[str, str]) -> Result:
        run = Run.resume(trained(task).folder, {"updates": trained(task).number + 4})
        for _ in run.train():
            pass
        return f"{run.number} updates", run.rt.fell_back

    def page(task: tuple[str, str]) -> str:
        if not trained(task).config.task.evaluation.flies:
            raise NotTried("no team flies")
        return f"{len(api.fly(trained(task).folder, place / 'flight.html').frames)} frames"

    def scored(task: tuple[str, str]) -> str:
        return str(api.evaluate(trained(task).folder, episodes=2, device=device)).partition("\n")[0]

    def baseline(env: str, name: str) -> str:
        return str(scores.evaluate_baseline(checks.small(env, None, device), name, 2, 0)).partition("\n")[0]

    def exported(task: tuple[str, str]) -> str:
        return api.export(trained(task).folder, place / f"{label(task)}.pt2").name

    for task in checks.tasks():
        yield Case(f"{label(task)}, trained in a folder", lambda task=task: f"{trained(task).number} updates")
        calls = {"resume": resumed, "evaluate": scored, "export": exported, "fly": page}
        for name, call in calls.items():
            yield Case(f"{label(task)}, {name}", partial(call, task))
    for env in checks.ENVIRONMENTS:
        for name in scores.baselines(checks.small(env, None, device)):
            yield Case(f"{env}, baseline {name}", partial(baseline, env, name))

    def predicted() -> str:
        from uavlab.telemetry import flights, predict
        from uavlab.telemetry.flights import Telemetry

        path, _ = next(iter(flights.write(Telemetry(flights=1), place / "logs", 1)))
        run = policy.load(ROOT / "figures" / "telemetry", device)
        forecast: Any = run.batched_policy(run.config.env, 0)
        return f"{len(predict.predict_log(forecast, run.config.env, path).time)} windows"

    yield Case("predictions along a log", predicted)


@group(4, "two ranks that share a GPU, by gloo; by NCCL a group of one, and two with a GPU each")
def ranks(device: str, folder: Path) -> Iterator[Case]:
    from tests.support import rank_runs

    place = Path(tempfile.mkdtemp(prefix="gpu_check"))

    def trained(backend: str, fault: str) -> tuple[rank_runs.Ended, list[dict[str, Any]]]:
        if backend == "nccl":
            need_gpus(2)
        own, settings = (
            place / f"{backend} {fault}",
            {"device": device, "rank_backend": backend, "rank_timeout_s": 60.0},
        )
        done = rank_runs.train(own, settings={**rank_runs.SMALL, **settings}, fault=fault)
        try:
            return done, [rank_runs.record(own, rank) for rank in range(2)]
        except FileNotFoundError as error:
            raise RuntimeError(f"exit code {done.code}: {done.err.strip()[-400:]}") from error

    def equal(backend: str) -> str:
        done, records = trained(backend, "none:0:0")
        digests = {record.get("learner_digest") for record in records}
        if done.code or len(digests) != 1 or None in digests:
            raise ArithmeticError(f"exit code {done.code}, learners {digests}: {records[0].get('reason', '')}")
        return f"{records[0]['update']} updates, equal learners"

    def ended(backend: str, fault: str, reason: str) -> str:
        done, (other, _) = trained(backend, f"{fault}:1:6")
        if not (done.code and reason in done.err and other.get("reason", "").startswith("another rank ended")):
            raise AssertionError(f"exit code {done.code}, {other['status']}: {other.get('reason', 'no reason')}")
        return other["reason"][:80]

    def one_rank() -> str:
        import torch
        from torch import distributed

        from uavlab.runtime.ranks import Group

        need_gpus(1)
        rows, store = torch.arange(6.0, device=device), distributed.HashStore()
        distributed.init_process_group("cpu:gloo,cuda:nccl", store=store, rank=0, world_size=1)
        group = Group(0, 1, store=store)
        try:
            results = [group.combine(rows, "sum"), group.combine(rows, "max"), group.from_first(rows)]
            exchanged = group.exchange("case", [1])
        finally:
            group.close()
        if not all(torch.equal(result, rows) for result in results) or exchanged != [[1]]:
            raise ArithmeticError(f"got {results} and {exchanged}, expected {rows} and [[1]]")
        return "sum, max, broadcast and exchange return the values of the only rank"

    yield Case("nccl, a group of one", one_rank)
    for backend in ("gloo", "nccl"):
        yield Case(f"{backend}, equal learners", partial(equal, backend), 120)
        yield Case(f"{backend}, a rank is killed", partial(ended, backend, "kill", "SIGKILL"), 120)
        yield Case(f"{backend}, a NaN", partial(ended, backend, "nan", "is nan"), 120)


def need_gpus(count: int) -> None:
    import torch

    if torch.cuda.device_count() < count:
        raise NotTried(f"needs {count} GPU{'s' * (count > 1)}, got {torch.cuda.device_count()}")


def cycle_config(task: tuple[str, str], device: str, **changes: Any) -> Any:
    """Return the settings of a cycle that is timed: of a real size on a GPU."""
    from tests.support import device_checks as checks

    return checks.small(*task, device, **changes, **checks.known(task, {} if device == "cpu" else REAL))


def sizes_of(config: Any) -> str:
    """Return in words how large a cycle is: agents, worlds, steps, batch, passes and minibatches, width."""
    values = config.values
    words = {"worlds": "worlds", "rollout_steps": "steps", "epochs": "passes", "minibatches": "minibatches"}
    parts = [f"{values[name]} {word}" for name, word in words.items() if name in values]
    parts += [f"{name} {values[name]}" for name in ("batch", "hidden", "window") if name in values]
    agents = getattr(getattr(config.env, "spec", None), "agents", None)
    return "sizes: " + ", ".join([f"{agents} agents"] * bool(agents) + parts)


@group(5, "waits of the host, kernels and busy time of a cycle", timed=True)
def waits(device: str, folder: Path) -> Iterator[Case]:
    from tests.support import device_checks as checks
    from uavlab.profiling.timing import median, time_in_turn
    from uavlab.runtime.toggles import TOGGLES
    from uavlab_lab.measure.compare import build_call

    def cycle(task: tuple[str, str], graph: str) -> Result:
        one = build_call(cycle_config(task, device, graph=graph), "cycle")
        with one.rt.scope():
            for _ in range(WARM):
                one.call()
            lines = checks.waits_by_line(one.call, 5, device)
            ms = 1e3 * median(time_in_turn({"": one.call}, 10, one.rt.device)[""])
            kernels, busy = checks.kernels(one.call, 5, device)
        where = "; ".join(f"{count / 5:g} at {line}" for line, count in lines.most_common(6)) or "none"
        figure = f"{ms:.2f} ms, {kernels:.0f} kernels, device busy {busy:.2f} ms; waits: {where}"
        return f"{figure}; {sizes_of(cycle_config(task, device))}", one.rt.fell_back

    for task in checks.tasks():
        for graph in TOGGLES["graph"].choices:
            yield Case(label(task, {"graph": graph}), partial(cycle, task, graph))


@group(24, "compiled runs, in each mode and precision")
def compiled(device: str, folder: Path) -> Iterator[Case]:
    from tests.support import device_checks as checks
    from uavlab.runtime.toggles import TOGGLES

    first = list({learner: (env, learner) for env, learner in reversed(checks.tasks())}.values())
    modes = [{"compile": mode} for mode in TOGGLES["compile"].choices if mode != "off"]
    low = [{**mode, "precision": each} for mode in modes for each in TOGGLES["precision"].choices if each != "fp32"]
    for changes in [*modes, *low]:
        for task in first:
            yield Case(label(task, changes), partial(finite_run, device, task, changes), 240, _slow(device, changes))


def _slow(device: str, changes: dict[str, Any]) -> bool:
    """Return whether a compiled run may take minutes on a healthy machine."""
    return device == "cpu" or changes["compile"] == "max-autotune"


@group(9, "the tests marked gpu")
def tests(device: str, folder: Path) -> Iterator[Case]:
    def run_file(name: str) -> str:
        words = [
            sys.executable,
            "-m",
            "pytest",
            name,
            "-m",
            "gpu and not soak",
            "-k",
            COVERED,
            "-q",
            "-p",
            "no:cacheprovider",
        ]
        done = subprocess.run([*words, "--tb=line"], cwd=ROOT, capture_output=True, text=True)
        lines = done.stdout.strip().splitlines() or [done.stderr.strip()[-300:]]
        if missing := [line for line in lines if "ModuleNotFoundError: No module named" in line]:
            raise NotTried(missing[0])
        if done.returncode not in (0, 5):  # 5: no tests
            raise AssertionError(f"{lines[-1]}: {next((line for line in lines if 'Error' in line), '')}")
        if "passed" not in lines[-1]:
            raise NotTried(lines[-1])
        return lines[-1].partition(" in ")[0]

    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        if path.parent.name != "tools" and GPU_TEST.search(path.read_text(encoding="utf-8")):
            yield Case(str(path.relative_to(ROOT)), partial(run_file, str(path)), seconds=300)


COMMANDS = {  # what a run on a GPU is worked with; PLACE is a folder of the case
    "train --monitor": "train leader_follower_quick --updates 64 --set log_every=16 --monitor --out PLACE/run",
    "train, a curriculum": "train assignment_curriculum_quick --updates 8 --out PLACE/stages",
    "train, worlds=auto": "train leader_follower_quick --updates 8 --set worlds=auto --out PLACE/auto",
    "profile": "profile leader_follower_quick --rounds 5",
    "fit": "fit leader_follower_quick --memory 256MB",
}


@group(4, "commands that measure a run or change it")
def commands(device: str, folder: Path) -> Iterator[Case]:
    def called(line: str) -> str:
        place = tempfile.mkdtemp(prefix="gpu_check")
        words = line.replace("PLACE", place).split()
        done = subprocess.run(
            [sys.executable, "-m", "uavlab", *words, "--device", device], cwd=place, capture_output=True, text=True
        )
        if done.returncode:
            raise RuntimeError(f"exit code {done.returncode}: {done.stderr.strip()[-300:]}")
        return (done.stdout.strip().splitlines() or ["no output"])[-1][:200]

    for name, line in COMMANDS.items():
        yield Case(name, partial(called, line), 120, slow=True)
