"""Exit codes, and the message of a divergence."""

import pickle

import pytest

from uavlab.core.errors import ConfigError, DivergedError, FileError, ResourceError, UavlabError, reason_of


def test_exit_codes() -> None:
    codes = {e: e.exit_code for e in (UavlabError, ConfigError, FileError, DivergedError, ResourceError)}
    assert list(codes.values()) == [1, 2, 3, 4, 5]
    assert all(issubclass(e, UavlabError) for e in codes)


RECORD = {"tensor": "q", "value": "nan", "expected": "less", "kind": "learner"}


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({}, "training: q is nan; expected less. Rest."),
        ({"update": 7}, "training: q is nan at update 7; expected less. Rest."),
        ({"run": 0}, "training: q of run 0 is nan; expected less. Rest."),
        (
            {"agent": 3, "world": 0, "run": 2, "update": 1},  # in whatever order it was learned
            "training: q of run 2, world 0, agent 3 is nan at update 1; expected less. Rest.",
        ),
    ],
)
def test_a_divergence_tells_what_is_known(more: dict[str, int], message: str) -> None:
    assert str(DivergedError({**RECORD, **more}, "Rest.")) == message


def test_a_divergence_learns_on_its_way_up() -> None:
    error = DivergedError(dict(RECORD), "Rest.")
    error.record["update"], error.advice = 9, "Go home."
    assert str(error) == "training: q is nan at update 9; expected less. Go home."
    again = pickle.loads(pickle.dumps(error))  # as worker processes hand it over
    assert (str(again), again.record) == (str(error), error.record)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ConfigError("lr: got 0."), "lr: got 0."),
        (DivergedError(dict(RECORD), "Rest."), "training: q is nan; expected less. Rest."),
        (ValueError("lr"), "ValueError: lr"),
        (MemoryError(), "MemoryError: "),
        (ConfigError(), "ConfigError: "),  # nothing would read as no reason
        (ConfigError(" \n"), "ConfigError:  \n"),
    ],
)
def test_a_reason_names_the_kind_of_what_is_not_ours(error: Exception, reason: str) -> None:
    assert reason_of(error) == reason
