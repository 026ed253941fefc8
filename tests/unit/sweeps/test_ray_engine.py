"""Only addresses that others cannot reach, or clusters with tokens, are joined; the cluster itself is a proof's."""

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
from uavlab.core.errors import ConfigError, MissingPackageError, ResourceError
from uavlab.storage.machine import usable_cores
from uavlab.sweeps import driver
from uavlab.sweeps.driver import open_engine, require_private, run_process


@pytest.mark.parametrize(
    "address", ["127.0.0.1:6379", "localhost:1", "10.1.2.3:65535", "192.168.0.9:6379", "[::1]:6379", "[fd00::1]:6379"]
)
def test_a_private_address_is_accepted(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    require_private(address)


@pytest.mark.parametrize("address", ["8.8.8.8:6379", "0.0.0.0:6379", "[::]:6379", "[2001:4860:4860::8888]:6379"])
@pytest.mark.parametrize("mode", ["", "disabled"])
def test_a_public_address_needs_tokens(monkeypatch: pytest.MonkeyPatch, address: str, mode: str) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", mode)
    with pytest.raises(ConfigError, match=r"neither loopback nor a private.*RAY_AUTH_MODE=token"):
        require_private(address)
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    require_private(address)


def test_a_name_may_be_any_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    with pytest.raises(ConfigError, match=r"cluster is neither loopback nor a private IP address"):
        require_private("cluster:6379")


@pytest.mark.parametrize(
    "address", ["", "6379", ":6379", "a:b", "a:0", "a:65536", "a:-1", "a:\uff16", "ray://a:1", "a:" + "9" * 5000]
)
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(ConfigError, match="expected HOST:PORT"):
        require_private(address)


NAMES = (*driver.RAY, "RAY_NUM_REDIS_GET_RETRIES", driver.MODE, *driver.TOKENS, "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER")


class Cluster:
    """Something like the package ray, which runs tasks at once."""

    def __init__(self, cpus: float = 6, gpus: float = 0, fails: Exception | None = None) -> None:
        self.resources, self.fails, self.log = {"CPU": cpus, "GPU": gpus}, fails, []
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
        return self.resources

    def nodes(self) -> list[dict[str, Any]]:
        half = {"CPU": self.resources["CPU"] / 2, "GPU": self.resources["GPU"] / 2}
        lost = {"Alive": False, "Resources": {"GPU": 8.0}}
        return [lost, {"Alive": True, "Resources": half}, {"Alive": True, "Resources": {**half}}]

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


def test_a_cluster_of_its_own_listens_on_loopback(cluster: Cluster) -> None:
    with open_engine(small(engine="ray", workers=None)) as engine:
        assert engine.workers == 6
    name, given = cluster.log[0]
    assert (name, given["address"], given["_node_ip_address"]) == ("init", "local", "127.0.0.1")
    assert (given["include_dashboard"], given["num_cpus"]) == (False, usable_cores())
    assert cluster.log[-1] == ("shutdown", None)


@pytest.mark.parametrize(
    ("address", "local"), [(None, "0"), ("127.0.0.1:1", "0"), ("localhost:1", "0"), ("10.0.0.1:1", None)]
)
def test_ray_reads_how_to_treat_loopback(cluster: Cluster, address: str | None, local: str | None) -> None:
    with open_engine(small(engine="ray", address=address)):
        assert os.environ.get("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER") == local
        assert os.environ["RAY_USAGE_STATS_ENABLED"] == "0"


def test_a_trial_is_a_task_that_is_not_repeated(cluster: Cluster) -> None:
    with open_engine(small(engine="ray", address="127.0.0.1:1", workers=2)) as engine:
        engine.run(Path("t"), "request", Event())  # whose worker is killed: the driver sees to that
        cluster.polls, stop = 2, Event()
        stop.set()
        engine.run(Path("t"), "request", stop)
    assert cluster.log[0][1]["address"] == "127.0.0.1:1"
    assert "_node_ip_address" not in cluster.log[0][1]
    assert cluster.log[1] == ("options", {"num_cpus": 1, "num_gpus": 0, "max_retries": 0})
    assert [name for name, _ in cluster.log[2:]] == ["task", "task", "cancel", "shutdown"]
    assert cluster.log[2][1][2:] == (Path("t"), "request")


def test_what_a_node_raises_is_the_error(cluster: Cluster) -> None:
    cluster.ends, stop = IndexError("many lines"), Event()
    cluster.ends.cause = ModuleNotFoundError("No module named 'uavlab'")  # type: ignore[attr-defined]
    with open_engine(small(engine="ray")) as engine:
        with pytest.raises(ModuleNotFoundError, match="uavlab"):
            engine.run(Path("t"), "request", stop)
        cluster.polls = 2
        stop.set()  # then it was cancelled
        engine.run(Path("t"), "request", stop)


def test_a_cluster_that_fails_is_one_error(cluster: Cluster) -> None:
    cluster.fails = RuntimeError("no\nspace")
    with pytest.raises(ResourceError, match=r"no Ray cluster at this machine \(RuntimeError: no\\nspace\)"):
        open_engine(small(engine="ray")).__enter__()
    assert [name for name, _ in cluster.log] == ["init", "shutdown"]
    joined = small(engine="ray", address="127.0.0.1:1")
    with pytest.raises(ResourceError, match=r"no Ray cluster at 127\.0\.0\.1:1 .*same Ray, Python and token"):
        open_engine(joined).__enter__()


def test_a_trial_needs_its_gpus_on_one_node(cluster: Cluster) -> None:
    with pytest.raises(ResourceError, match=r"no node of the cluster has more than 0, expected 0\.5 .*set gpus: 0, or"):
        open_engine(small(engine="ray", gpus=0.5)).__enter__()
    cluster.resources["GPU"] = 2.0
    with open_engine(small(engine="ray", gpus=1)):
        pass
    with pytest.raises(ResourceError, match="no node of the cluster has more than 1"):
        open_engine(small(engine="ray", gpus=2)).__enter__()


@pytest.mark.parametrize(
    ("given", "mode", "token"),
    [
        ({}, "token", 64),
        ({"RAY_AUTH_MODE": "disabled"}, "disabled", 64),  # as its user wants
        ({"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "mine"}, "token", 4),
        ({"RAY_AUTH_TOKEN_PATH": "/mine"}, "token", 0),
    ],
)
def test_a_cluster_of_its_own_asks_for_a_token(cluster: Cluster, given: dict[str, str], mode: str, token: int) -> None:
    os.environ.update(given)
    for _ in range(2):  # the second sweep of a process takes over what Ray has read
        with open_engine(small(engine="ray")):
            assert (os.environ["RAY_AUTH_MODE"], len(os.environ.get("RAY_AUTH_TOKEN", ""))) == (mode, token)


def test_a_cluster_that_is_joined_gets_no_token_of_ours(cluster: Cluster) -> None:
    with open_engine(small(engine="ray", address="127.0.0.1:1")):
        assert not {driver.MODE, *driver.TOKENS} & {*os.environ}


def test_ray_that_was_imported_before_has_no_token(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", cluster)  # type: ignore[arg-type]
    with pytest.raises(ResourceError, match=r"Ray was imported before the sweep, .*start the sweep in a new one"):
        open_engine(small(engine="ray")).__enter__()
    assert cluster.log == []
    with open_engine(small(engine="ray", address="127.0.0.1:1")):
        pass
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    with open_engine(small(engine="ray")):
        pass


def test_ray_is_an_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "find_spec", lambda name: None)
    with pytest.raises(MissingPackageError, match=r"needs ray, not installed; .*uavlab\[ray\]"):
        open_engine(small(engine="ray")).__enter__()
