"""Trials on Ray are plain tasks of a cluster that is started or joined; a real cluster is a proof's."""

import os
import signal
import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.sweeps import small
from uavlab.core import extras
from uavlab.core.errors import MissingPackageError, ResourceError
from uavlab.storage.machine import usable_cores
from uavlab.sweeps import driver
from uavlab.sweeps.driver import open_engine, run_process

NAMES = (*driver.RAY, *driver.HERE, *driver.ELSEWHERE)


class Cluster:
    """Something like the package ray, which runs tasks at once."""

    def __init__(self) -> None:
        self.fails: Exception | None = None
        self.log: list[tuple[str, Any]] = []
        self.exceptions = SimpleNamespace(RayError=LookupError, RayTaskError=IndexError)
        self.polls = 2
        self.ends: Exception = LookupError("its worker was killed")

    def find_spec(self, name: str, *given: Any) -> Any:
        """Be what ``import ray`` imports."""
        return ModuleSpec(name, self) if name == "ray" else None  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> Any:
        return self

    def exec_module(self, module: Any) -> None:
        pass

    def init(self, **given: Any) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # as Ray does
        self.log.append(("init", given))
        if self.fails:
            raise self.fails

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": 6.0}

    def remote(self, **options: Any) -> Any:
        def task(function: Any) -> Any:
            assert function is run_process
            return SimpleNamespace(remote=lambda *given: self.log.append(("task", given)) or "task")

        self.log.append(("options", options))
        return task

    def wait(self, tasks: list[str], timeout: float) -> tuple[list[str], list[str]]:
        self.polls -= 1
        return ([], tasks) if self.polls else (tasks, [])

    def cancel(self, task: str) -> None:
        self.log.append(("cancel", task))

    def get(self, task: str) -> None:
        raise self.ends

    def shutdown(self) -> None:
        self.log.append(("shutdown", None))


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    before = dict(os.environ)
    monkeypatch.delitem(sys.modules, "ray", raising=False)  # another test of this process may have imported it
    own = Cluster()
    monkeypatch.setattr(sys, "meta_path", [own, *sys.meta_path])
    monkeypatch.setattr(driver, "require", lambda *given: None)
    for name in NAMES:
        os.environ.pop(name, None)
    handler = signal.signal(signal.SIGTERM, lambda *given: None)
    mine = signal.getsignal(signal.SIGTERM)
    yield own
    assert signal.getsignal(signal.SIGTERM) is mine
    signal.signal(signal.SIGTERM, handler)
    for name in NAMES:
        os.environ.pop(name, None)
    os.environ.update(before)


@pytest.mark.parametrize("address", [None, "10.0.0.1:1"])
def test_a_cluster_is_started_on_loopback_or_joined(cluster: Cluster, address: str | None) -> None:
    with open_engine(small(engine="ray", workers=None, address=address)) as (workers, _):
        assert workers == 6
    (name, given), *_, last = cluster.log
    assert (name, given["address"], last) == ("init", address or "local", ("shutdown", None))
    own = {"num_cpus": usable_cores(), "include_dashboard": False, "_node_ip_address": "127.0.0.1"}
    assert {key: given[key] for key in own if key in given} == ({} if address else own)
    known = {name for name in NAMES if name in os.environ}
    assert known == {*driver.RAY, *(driver.ELSEWHERE if address else driver.HERE)}


def test_a_trial_is_a_task_that_is_not_repeated(cluster: Cluster) -> None:
    with open_engine(small(engine="ray", workers=2, gpus=0.5)) as (_, run):
        run(Path("t"), "request", Event())  # whose worker is killed: the driver sees to that
        cluster.polls, stop = 2, Event()
        stop.set()
        run(Path("t"), "request", stop)
    assert cluster.log[1] == ("options", {"num_cpus": 1, "num_gpus": 0.5, "max_retries": 0})
    assert [name for name, _ in cluster.log[2:]] == ["task", "task", "cancel", "shutdown"]
    assert cluster.log[2][1][2:] == (Path("t"), "request")


def test_what_a_node_raises_is_the_error(cluster: Cluster) -> None:
    cluster.ends, stop = IndexError("many lines"), Event()
    cluster.ends.cause = ModuleNotFoundError("No module named 'uavlab'")  # type: ignore[attr-defined]
    with open_engine(small(engine="ray")) as (_, run):
        with pytest.raises(ModuleNotFoundError, match="uavlab"):
            run(Path("t"), "request", stop)
        cluster.polls = 2
        stop.set()  # then it was cancelled
        run(Path("t"), "request", stop)


@pytest.mark.parametrize(("address", "where"), [(None, "this machine"), ("head:1", "head:1")])
def test_a_cluster_that_fails_is_one_error(cluster: Cluster, address: str | None, where: str) -> None:
    cluster.fails = RuntimeError("no\nspace")
    with pytest.raises(ResourceError, match=rf"no Ray cluster at {where} \(RuntimeError: no\\nspace\)"):
        open_engine(small(engine="ray", address=address)).__enter__()
    assert [name for name, _ in cluster.log] == ["init", "shutdown"]


def test_ray_is_an_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "find_spec", lambda name: None)
    with pytest.raises(MissingPackageError, match=r"needs ray, not installed; .*uavlab\[ray\]"):
        open_engine(small(engine="ray")).__enter__()
