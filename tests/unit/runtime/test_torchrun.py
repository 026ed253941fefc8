"""The place of a process among ranks by the variables of torchrun, and what connects it or refuses to."""

import socket
from typing import Any

import pytest
import torch

from uavlab.core.errors import ConfigError, ResourceError
from uavlab.runtime import ranks
from uavlab.runtime.ranks import ALONE, join, place, restarts

VARIABLES = ("WORLD_SIZE", "RANK", "MASTER_ADDR", "MASTER_PORT", "LOCAL_RANK", "LOCAL_WORLD_SIZE")


@pytest.fixture(autouse=True)
def without_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*VARIABLES, "TORCHELASTIC_RESTART_COUNT"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"WORLD_SIZE": "2"}, "WORLD_SIZE is 2, but RANK, MASTER_ADDR, MASTER_PORT is not set"),
        ({"WORLD_SIZE": "two"}, "WORLD_SIZE is 'two'; expected a whole number from 1 to 65536"),
        ({"WORLD_SIZE": "0"}, "WORLD_SIZE is '0'"),
        ({"WORLD_SIZE": "2", "RANK": "2"}, "RANK is '2'; expected a whole number from 0 to 1"),
        ({"WORLD_SIZE": "2", "RANK": "-1"}, "RANK is '-1'"),
        ({"WORLD_SIZE": "2", "RANK": "0", "MASTER_PORT": "99999"}, "MASTER_PORT is '99999'"),
    ],
)
def test_a_wrong_place_is_refused(given: dict[str, str], message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    if "RANK" in given:
        monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
        monkeypatch.setenv("MASTER_PORT", given.get("MASTER_PORT", "29500"))
    with pytest.raises(ConfigError, match=message):
        place()


def test_a_process_without_torchrun_is_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    assert place() == (0, 1)
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert join() is ALONE
    assert restarts() == 0
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "3")
    assert restarts() == 3


def set_place(monkeypatch: pytest.MonkeyPatch, port: int, rank: int) -> None:
    values = {"WORLD_SIZE": 2, "RANK": rank, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "LOCAL_WORLD_SIZE": 2}
    for name, value in values.items():
        monkeypatch.setenv(name, str(value))


def test_a_port_in_use_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        set_place(monkeypatch, port := taken.getsockname()[1], 0)
        with pytest.raises(ConfigError, match=rf"MASTER_PORT of 127.0.0.1:{port} is in use; .* --standalone, .*port="):
            join(timeout_s=2)


def test_a_missing_rank_0_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        set_place(monkeypatch, free.getsockname()[1], 1)
    with pytest.raises(ResourceError, match="rank 1 of 2 could not be connected"):
        join(timeout_s=1)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"LOCAL_RANK": "two"}, "LOCAL_RANK is 'two'; expected a whole number from 0 to 65535, as torchrun sets it"),
        ({"LOCAL_RANK": "-1"}, "LOCAL_RANK is '-1'; expected a whole number from 0"),
        ({"LOCAL_WORLD_SIZE": "0"}, "LOCAL_WORLD_SIZE is '0'; expected a whole number from 1 to 65536"),
    ],
)
def test_a_wrong_place_on_a_machine_is_refused(
    given: dict[str, str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_place(monkeypatch, 29_500, 1)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=message):
        join()


def test_nccl_needs_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    set_place(monkeypatch, 29_500, 0)
    with pytest.raises(ConfigError, match="rank_backend: nccl needs a GPU for each rank, got 0 for 2 here"):
        join("nccl")
    assert ranks._backend("auto", "auto") == "gloo"


@pytest.mark.parametrize(
    ("gpus", "wanted", "chosen", "own"),
    [(2, "auto", "cpu:gloo,cuda:nccl", 1), (2, "gloo", "gloo", 1), (1, "auto", "gloo", 0)],
)
def test_each_rank_gets_a_gpu(gpus: int, wanted: Any, chosen: str, own: int, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(torch.cuda, "set_device", taken.append)
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: True)
    set_place(monkeypatch, 29_500, 1)
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert ranks._backend(wanted, "auto") == chosen
    assert taken == [own]
