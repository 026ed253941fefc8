"""Only addresses that others cannot reach, or clusters with tokens, are joined; the cluster itself is a proof's."""

import os
import re
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.sweeps import small
from uavlab.core import extras
from uavlab.core.errors import ConfigError, MissingPackageError, ResourceError
from uavlab.storage.machine import usable_cores
from uavlab.sweeps import ray_engine
from uavlab.sweeps.driver import open_engine
from uavlab.sweeps.engines import run_process
from uavlab.sweeps.ray_engine import require_cluster, require_private, require_reachable


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
    with pytest.raises(ConfigError, match=r"neither loopback nor private.*RAY_AUTH_MODE=token"):
        require_private(address)
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    require_private(address)


def test_all_addresses_of_a_name_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    known = [(0, 0, 0, "", (host, 1)) for host in ("10.0.0.1", "8.8.4.4")]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *given, **named: known)
    with pytest.raises(ConfigError, match=r"8\.8\.4\.4 is neither"):
        require_private("cluster:6379")


@pytest.mark.parametrize(
    "address", ["", "6379", ":6379", "a:b", "a:0", "a:65536", "a:-1", "a:\uff16", "ray://a:1", "a:" + "9" * 5000]
)
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(ConfigError, match="expected HOST:PORT"):
        require_private(address)


def test_an_unknown_host_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*given: Any, **named: Any) -> None:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(ConfigError, match=r"the host is not known \(.*\), expected a name .*such as 10\.0\.0\.1:1\."):
        require_private("absent.invalid:1")


def test_a_port_that_nobody_listens_at_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        require_reachable(address)
    with pytest.raises(ConfigError, match=r"nothing answers there.*ray start --head"):
        require_reachable(address)


@pytest.mark.parametrize(
    ("probe", "message"),
    [
        (
            "import time; time.sleep(60)",
            "no Ray cluster answered in 1 s, expected the head node of one; check it by `ray status --address=10.0.0.1",
        ),
        (
            "raise OSError('no\\tway')",
            r"no Ray cluster can be joined there: OSError: no\tway, expected a cluster with the same Ray and Python; "
            "check it by `ray status --address=10.0.0.1:7`; its logs are below /tmp/ray on its head node.",
        ),
        (
            "raise OSError('InvalidAuthToken: wrong')",
            "joined there: it asks for another token; set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN as there.",
        ),
    ],
)
def test_what_cannot_be_joined_is_refused_in_time(monkeypatch: pytest.MonkeyPatch, probe: str, message: str) -> None:
    monkeypatch.setattr(ray_engine, "PROBE", probe)
    monkeypatch.setattr(ray_engine, "JOIN", 1.0 if "sleep" in probe else 60.0)
    with pytest.raises(ConfigError, match=re.escape(message)):
        require_cluster("10.0.0.1:7")


def test_what_can_be_joined_is_not_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_engine, "PROBE", "import sys; sys.exit(sys.argv[1] != 'a:1')")
    require_cluster("a:1")


AUTH = dict.fromkeys([ray_engine.MODE, *ray_engine.TOKENS])


class Cluster:
    """Something like the package ray, which runs tasks at once."""

    def __init__(self, cpus: float = 6, gpus: float = 0, fails: Exception | None = None) -> None:
        self.resources, self.fails, self.log = {"CPU": cpus, "GPU": gpus}, fails, []
        self.exceptions = SimpleNamespace(RayError=LookupError, RayTaskError=IndexError)
        self.polls = 2
        self.ends: Exception = LookupError("its worker was killed")
        self.util = SimpleNamespace(get_node_ip_address=lambda: "127.0.0.1")

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
    monkeypatch.setitem(sys.modules, "ray", own := Cluster())  # type: ignore[arg-type]
    monkeypatch.setattr(ray_engine, "FIRST", True)  # another test of this process may have imported Ray
    monkeypatch.setattr(ray_engine, "require", lambda *given: None)
    monkeypatch.setattr(ray_engine, "require_reachable", lambda address: None)
    monkeypatch.setattr(ray_engine, "require_cluster", lambda address: None)
    for name in {**ray_engine.QUIET, **ray_engine.LOCAL, **AUTH}:
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    handler = signal.signal(signal.SIGTERM, lambda *given: None)
    mine = signal.getsignal(signal.SIGTERM)
    yield own
    assert signal.getsignal(signal.SIGTERM) is mine
    signal.signal(signal.SIGTERM, handler)


def test_a_cluster_of_its_own_listens_on_loopback(cluster: Cluster) -> None:
    with open_engine(small(engine="ray", workers=None)) as engine:
        assert engine.workers == 6
    name, given = cluster.log[0]
    assert (name, given["address"], given["_node_ip_address"]) == ("init", "local", "127.0.0.1")
    assert (given["include_dashboard"], given["num_cpus"]) == (False, usable_cores())
    assert cluster.log[-1] == ("shutdown", None)


def test_one_that_others_can_reach_is_refused(cluster: Cluster) -> None:
    cluster.util.get_node_ip_address = lambda: "10.0.0.1"
    with pytest.raises(ResourceError, match=r"listens on 10\.0\.0\.1"), open_engine(small(engine="ray")):
        pass
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
    class RemoteError(LookupError, ResourceError):
        cause = ResourceError("t: cannot start a process.")

    with open_engine(small(engine="ray")) as engine:
        cluster.ends = RemoteError("many lines")
        with pytest.raises(ResourceError, match=r"^t: cannot start a process\.$"):
            engine.run(Path("t"), "request", Event())
        cluster.polls, cluster.ends = 2, ConnectionError("no head")
        with pytest.raises(ResourceError, match=r"the Ray cluster is lost \(ConnectionError: no head\), .*it goes on"):
            engine.run(Path("t"), "request", Event())


def test_a_node_that_lacks_something_is_an_error(cluster: Cluster) -> None:
    cluster.ends, stop = IndexError("No module named 'uavlab'"), Event()
    with open_engine(small(engine="ray")) as engine:
        with pytest.raises(ResourceError, match=r"a node cannot start a trial \(No module named 'uavlab'\), expected"):
            engine.run(Path("t"), "request", stop)
        cluster.polls = 2
        stop.set()  # then it was cancelled
        engine.run(Path("t"), "request", stop)


def test_a_cluster_that_fails_is_one_error(cluster: Cluster) -> None:
    cluster.fails = RuntimeError("no\nspace")
    with pytest.raises(ResourceError, match=r"RuntimeError: no\\nspace"), open_engine(small(engine="ray")):
        pass
    assert [name for name, _ in cluster.log] == ["init", "shutdown"] * 3 + ["shutdown"]
    joined = small(engine="ray", address="127.0.0.1:1")
    with pytest.raises(ConfigError, match=r"can be joined there: .*; check it by `ray status"), open_engine(joined):
        pass


def test_a_cluster_without_gpus_is_refused(cluster: Cluster) -> None:
    with (
        pytest.raises(ResourceError, match=r"no node of the cluster has more than 0, expected 0\.5 .*set gpus: 0, or"),
        open_engine(small(engine="ray", gpus=0.5)),
    ):
        pass


def test_a_trial_needs_its_gpus_on_one_node(cluster: Cluster) -> None:
    cluster.resources["GPU"] = 2.0
    with open_engine(small(engine="ray", gpus=1)):
        pass
    with pytest.raises(ResourceError, match="no node of the cluster has more than 1"):
        open_engine(small(engine="ray", gpus=2)).__enter__()


FRESH = "a fresh one"  # a name of a case must be the same in all processes of pytest


@pytest.mark.parametrize(
    ("given", "mode", "token"),
    [
        ({}, "token", FRESH),
        ({"RAY_AUTH_MODE": "disabled"}, "token", FRESH),
        ({"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "mine"}, "token", "mine"),
        ({"RAY_AUTH_TOKEN_PATH": "/mine"}, "token", None),
    ],
)
def test_a_cluster_of_its_own_asks_for_a_token(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, given: dict[str, str], mode: str, token: str | None
) -> None:
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    before, token = dict(os.environ), ray_engine.TOKEN if token == FRESH else token
    with open_engine(small(engine="ray")):
        assert (os.environ["RAY_AUTH_MODE"], os.environ.get("RAY_AUTH_TOKEN")) == (mode, token)
    assert dict(os.environ) == before
    with open_engine(small(engine="ray", address="127.0.0.1:1")):
        assert {name: os.environ.get(name) for name in AUTH} == {name: given.get(name) for name in AUTH}
    assert len(ray_engine.TOKEN) == 64


def test_ray_that_was_imported_before_has_no_token(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_engine, "FIRST", False)
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
