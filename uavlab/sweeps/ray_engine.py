"""Trials on a Ray cluster: one that runs, joined by its address, or one on this machine for the time of a sweep.

A Ray cluster obeys whoever reaches it. One that is started here listens on the loopback interface alone, without a
dashboard, and asks for a token. One elsewhere must have a private address, or tokens.
"""

import ipaddress
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import Any

from uavlab.core.errors import ConfigError, ResourceError, UavlabError
from uavlab.core.extras import require
from uavlab.core.installation import entry
from uavlab.core.text import one_line, quote
from uavlab.storage.machine import usable_cores
from uavlab.sweeps.engines import POLL, Engine, run_process
from uavlab.sweeps.spec import Sweep

LOOPBACK = "127.0.0.1"
REACH, JOIN = 5.0, 60.0  # s to reach what listens at an address, and to join its cluster
PROBE = "import sys, ray; ray.init(address=sys.argv[1], log_to_driver=False, configure_logging=False)"
STARTS = 3  # of a cluster here: on a busy machine Ray gives up after half a minute
QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # GPUs stay visible to trials that reserve none, as with ``local``
    "RAY_kill_child_processes_on_worker_exit": "false",  # a trial ends by itself, after its update
    "RAY_gcs_rpc_server_connect_timeout_s": "5",
}
LOCAL = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}  # by which Ray leaves loopback addresses as they are; read at import
MODE, TOKENS = "RAY_AUTH_MODE", ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")
TOKEN = secrets.token_hex(32)  # of clusters that start here: one for the process, because Ray reads it once
FIRST = "ray" not in sys.modules  # or else Ray was imported, and read its variables, before any sweep


@contextmanager
def ray_engine(sweep: Sweep) -> Iterator[Engine]:
    """Yield the engine of a Ray cluster, as many trials at once as it has cores by default."""
    require("ray", "engine: ray", "ray")
    if sweep.address is not None:
        require_private(sweep.address)
        require_reachable(sweep.address)
    elif not FIRST and os.environ.get(MODE, "").lower() != "token":
        raise ResourceError(
            "engine: Ray was imported before the sweep, so a cluster here would ask for no token; expected a process "
            "without it: start the sweep in a new one."
        )
    with _variables(_own_variables(sweep.address)):
        if sweep.address is not None:
            require_cluster(sweep.address)
        import ray

        handler = signal.getsignal(signal.SIGTERM)
        try:
            _init(ray, sweep)
            _restore(handler)  # Ray's own would end this process
            if sweep.address is None and (host := ray.util.get_node_ip_address()) != LOOPBACK:
                raise ResourceError(
                    f"engine: Ray listens on {host}, expected {LOOPBACK}, because it was imported before; start the "
                    "sweep in a new process."
                )
            _require_gpus(ray, sweep.gpus)
            cores = int(ray.cluster_resources().get("CPU", 1))
            yield Engine(sweep.workers or max(1, cores), _runner(ray, sweep))
        finally:
            ray.shutdown()
            _restore(handler)


def _own_variables(address: str | None) -> dict[str, str]:
    """Return the variables by which Ray is quiet, and a cluster that starts here asks for a token."""
    own = {**QUIET, **(LOCAL if _is_local(address) else {})}
    own = {name: os.environ.get(name, value) for name, value in own.items()}
    if address is not None:
        return own
    token = {} if any(map(os.environ.get, TOKENS)) else {TOKENS[0]: TOKEN}
    return {**own, MODE: "token", **token}


@contextmanager
def _variables(values: Mapping[str, str]) -> Iterator[None]:
    """Set variables of the environment, and restore them at the end: clusters that are joined later have others."""
    before = {name: os.environ.get(name) for name in (MODE, *values)}  # Ray sets the mode, too
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _require_gpus(ray: Any, share: float) -> None:
    """Return if some node has so many GPUs; Ray would wait for one that has, forever."""
    most = max([0.0, *(node["Resources"].get("GPU", 0.0) for node in ray.nodes() if node["Alive"])])
    if most < share:
        raise ResourceError(
            f"gpus: no node of the cluster has more than {most:g}, expected {share:g} for each trial; set gpus: 0, or "
            "add a node that has them."
        )


def _restore(handler: Any) -> None:
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, handler)


def _init(ray: Any, sweep: Sweep) -> None:
    own = {"num_cpus": sweep.workers or usable_cores(), "include_dashboard": False, "_node_ip_address": LOOPBACK}
    where = {"address": "local", **own} if sweep.address is None else {"address": sweep.address}
    for left in reversed(range(STARTS if sweep.address is None else 1)):
        try:
            ray.init(**where, log_to_driver=False, configure_logging=False, namespace="uavlab")
            return
        except Exception as error:  # of any kind: Ray has no common one
            ray.shutdown()
            if left:
                continue
            what = one_line(f"{type(error).__name__}: {error}")[:300]
            if sweep.address is None:
                advice = "free some memory and cores, or use engine: local"
                raise ResourceError(f"engine: no Ray cluster can be started here ({what}); {advice}.") from error
            raise ConfigError(
                f"address {sweep.address}: no Ray cluster can be joined there: {what}; {_check(sweep.address)}, and "
                "start the sweep in a new process."
            ) from error


def _runner(ray: Any, sweep: Sweep) -> Any:
    """Return the function that runs a trial as a task of the cluster."""
    remote = ray.remote(num_cpus=1, num_gpus=sweep.gpus, max_retries=0)(run_process)
    program, where = entry(), os.getcwd()

    def run(folder: Path, request: str, stop: Event) -> None:
        """Return whatever ended the task: its worker or the whole node was lost, or it was cancelled."""
        try:
            task, asked = remote.remote(program, where, folder, request), False
            while not ray.wait([task], timeout=POLL)[0]:
                if stop.is_set() and not asked:
                    ray.cancel(task)  # interrupts the function, which closes the pipe and waits for the trial
                    asked = True
            ray.get(task)
        except UavlabError as error:
            raise getattr(error, "cause", error) from None  # as the function raised it, without Ray's words
        except ray.exceptions.RayError as error:
            if isinstance(error, ray.exceptions.RayTaskError) and not stop.is_set():  # a node lacks something
                what = one_line(str(getattr(error, "cause", error)))[:300]
                raise ResourceError(
                    f"engine: a node cannot start a trial ({what}), expected uavlab as here; install it on every node."
                ) from None
        except Exception as error:  # of any kind, as above
            what = one_line(f"{type(error).__name__}: {error}")[:300]
            raise ResourceError(
                f"engine: the Ray cluster is lost ({what}), expected one that runs until the sweep ends; start it "
                "again if it has an address, then the same sweep: it goes on."
            ) from error

    return run


def _is_local(address: str | None) -> bool:
    return address is None or address.rpartition(":")[0] in (LOOPBACK, "localhost", "[::1]")


def require_private(address: str) -> None:
    """Refuse an address that others may reach, unless Ray uses tokens."""
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    if not host or "/" in host or not (port.isascii() and port.isdigit() and 0 < int(port[:6]) < 65536):
        raise ConfigError(f"address {quote(address)}: expected HOST:PORT, such as {LOOPBACK}:6379.")
    try:
        known = {entry[4][0] for entry in socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)}
    except (OSError, UnicodeError) as error:
        raise ConfigError(
            f"address {quote(address)}: the host is not known ({error}), expected a name that this machine resolves; "
            f"give the IP address of the head node, such as 10.0.0.1:{port}."
        ) from error
    public = [each for each in known if not _is_private(str(each))]
    if public and os.environ.get(MODE, "").lower() != "token":
        raise ConfigError(
            f"address {quote(address)}: {public[0]} is neither loopback nor private, and a Ray cluster without tokens "
            "obeys whoever reaches it; use a private address, or start the cluster and this sweep with "
            "RAY_AUTH_MODE=token."
        )


def _is_private(host: str) -> bool:
    address = ipaddress.ip_address(host.partition("%")[0])
    return (address.is_private or address.is_loopback or address.is_link_local) and not address.is_unspecified


def require_reachable(address: str) -> None:
    """Return if something listens at an address."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), REACH).close()
    except OSError as error:
        raise ConfigError(
            f"address {address}: nothing answers there ({error}); start a cluster there by `RAY_AUTH_MODE=token "
            f"ray start --head --port={port} --include-dashboard=false`, or leave out address."
        ) from error


def require_cluster(address: str) -> None:
    """Return if a Ray cluster can be joined at an address; a process tries it, because Ray may wait forever."""
    try:
        probe = subprocess.run([sys.executable, "-c", PROBE, address], capture_output=True, text=True, timeout=JOIN)
    except subprocess.TimeoutExpired as error:
        raise ConfigError(
            f"address {address}: no Ray cluster answered in {JOIN:.0f} s, expected the head node of one; "
            f"{_check(address)}."
        ) from error
    if probe.returncode:
        why = one_line(probe.stderr.strip().rpartition("\n")[2][:200])
        what = f"{why}, expected a cluster with the same Ray and Python; {_check(address)}"
        if "InvalidAuthToken" in probe.stderr:
            what = f"it asks for another token; set {MODE}=token and {TOKENS[0]} as there"
        raise ConfigError(f"address {address}: no Ray cluster can be joined there: {what}.")


def _check(address: str) -> str:
    return f"check it by `ray status --address={address}`; its logs are below /tmp/ray on its head node"
