"""A cache brings worlds to their states from a live copy, or by playing their actions again, with the same bits."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from uavlab.core.errors import ConfigError, FallbackWarning
from uavlab.experiment.names import parse_external
from uavlab.workers.cache import Cache, World, cache_for, close_all, key_of
from uavlab.workers.processes import TRIES, Worker, Workers, describe

HERE = "tests.support.strangers"


def cache_of(name: str = "Meadow", workers: int = 2, copies: int = 4, timeout_s: float = 30.0) -> Cache:
    origin = parse_external(f"{HERE}:{name}")
    return Cache(origin, describe(origin), workers, copies, timeout_s)


@pytest.fixture
def cache() -> Iterator[Cache]:
    one = cache_of()
    yield one
    one.close()


class Line:
    """A world whose episode is followed by hand."""

    def __init__(self, number: int, seed: int) -> None:
        self.number, self.seed, self.key = number, seed, key_of(0, seed.to_bytes(8, "little"))
        self.past: list[np.ndarray] = []
        self.obs = np.zeros(0)

    def start(self) -> World:
        return World(self.number, self.seed, self.key)

    def step(self, moves: list[int]) -> World:
        action, before, past, obs = np.array(moves)[:, None], self.key, self.past, self.obs
        self.key = key_of(before, action.tobytes())
        self.past = [*past, action]
        return World(self.number, self.seed, self.key, before, action, lambda: np.array(past), lambda: obs)


def bring(cache: Cache, lines: list[Line], moves: list[int] | None = None) -> np.ndarray:
    rows = cache.bring([line.start() if moves is None else line.step(moves) for line in lines])
    for line, obs in zip(lines, rows.obs, strict=True):
        line.obs = obs
    return rows.obs


def test_a_fingerprint_depends_on_seed_actions_and_their_order() -> None:
    start, other = key_of(0, b"a"), key_of(0, b"b")
    keys = [start, other, key_of(start, b"x"), key_of(other, b"x"), key_of(key_of(start, b"x"), b"y")]
    keys += [key_of(key_of(start, b"y"), b"x")]
    assert len(set(keys)) == 6
    assert all(-(2**63) <= key < 2**63 for key in keys)
    assert key_of(start, b"x") == keys[2]


def test_live_copies_go_on_without_being_rebuilt(cache: Cache) -> None:
    lines = [Line(n, seed) for n, seed in enumerate((3, 4, 5))]
    bring(cache, lines)
    for _ in range(3):
        bring(cache, lines, [1, 0, 1])
    assert cache.counts["rebuilt"] == 0
    assert len(cache.live) == 3


def test_a_state_without_a_copy_is_rebuilt_to_the_same_bits(cache: Cache) -> None:
    line, twin = Line(0, 3), Line(0, 3)
    bring(cache, [line])
    bring(cache, [line], [1, 0, 1])
    bring(cache, [line], [0, 2, 1])
    expected = bring(cache, [line], [2, 2, 0])
    bring(cache, [twin])
    for moves in ([1, 0, 1], [0, 2, 1]):
        bring(cache, [twin], moves)
    cache._forget()
    assert np.array_equal(bring(cache, [twin], [2, 2, 0]), expected)
    assert (cache.counts["rebuilt"], cache.counts["inexact"]) == (1, 0)


def test_two_branches_of_one_state_do_not_disturb_each_other(cache: Cache) -> None:
    first, second = Line(0, 3), Line(1, 3)
    bring(cache, [first])
    bring(cache, [second])
    both = bring(cache, [first, second], [1, 1, 1])  # from one state, by one action
    assert np.array_equal(both[0], both[1])
    left, right = (cache.bring([line.step(moves)]).obs[0] for line, moves in ((first, [0, 0, 0]), (second, [1, 1, 1])))
    assert not np.array_equal(left, right)
    alone = cache_of(workers=1)
    other = Line(0, 3)
    bring(alone, [other])
    bring(alone, [other], [1, 1, 1])
    assert np.array_equal(bring(alone, [other], [1, 1, 1])[0], right)
    alone.close()


def test_more_worlds_than_copies_take_turns(cache: Cache) -> None:
    halves = [[Line(n, seed + n) for n in range(3)] for seed in (0, 10)]
    plain, twins = cache_of(copies=100), [[Line(n, seed + n) for n in range(3)] for seed in (0, 10)]
    for lines, same in zip(halves, twins, strict=True):
        bring(cache, lines)
        bring(plain, same)
    for _ in range(3):
        for lines, same in zip(halves, twins, strict=True):
            assert np.array_equal(bring(cache, lines, [1, 1, 1]), bring(plain, same, [1, 1, 1]))
    assert cache.counts["rebuilt"] > 0
    assert plain.counts["rebuilt"] == 0
    many = [Line(n, n) for n in range(9)]
    assert len(bring(cache, many)) == 9  # more at once make more copies
    plain.close()


def test_copies_of_worlds_that_ended_are_free(cache: Cache) -> None:
    lines = [Line(n, n) for n in range(4)]
    bring(cache, lines)
    cache.release([lines[0].key, 12345])
    assert len(cache.live) == 3
    bring(cache, [Line(0, 9)])
    assert len(cache.live) == 4  # nobody had to go


def test_worlds_of_a_lost_worker_are_rebuilt_with_one_warning(cache: Cache) -> None:
    mine, same = ([Line(n, n) for n in range(4)] for _ in range(2))
    plain = cache_of()
    bring(cache, mine)
    bring(plain, same)
    bring(cache, mine, [1, 1, 1])
    bring(plain, same, [1, 1, 1])
    cache.workers.members[1].process.kill()  # type: ignore[union-attr]
    with pytest.warns(FallbackWarning, match=r"worker 1 was started again, because it ended with signal 9"):
        obs = bring(cache, mine, [0, 1, 0])
    assert np.array_equal(obs, bring(plain, same, [0, 1, 0]))
    assert (cache.counts["restarts"], cache.counts["rebuilt"]) == (1, 2)
    cache.workers.members[0].process.kill()  # type: ignore[union-attr]
    assert np.array_equal(bring(cache, mine, [0, 1, 0]), bring(plain, same, [0, 1, 0]))  # silently
    plain.close()


@pytest.mark.filterwarnings("ignore::uavlab.core.errors.FallbackWarning")
def test_workers_that_are_lost_one_after_the_other_in_one_step(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    mine, same = ([Line(n, n) for n in range(4)] for _ in range(2))
    plain, kills = cache_of(), [0, None, 1]  # the second one after its own worlds were stepped
    for each, lines in ((cache, mine), (plain, same)):
        bring(each, lines)
        bring(each, lines, [1, 1, 1])
    run = Workers.run

    def run_and_kill(workers: Workers, pairs: Any, timeout_s: float) -> Any:
        if workers is cache.workers and kills and (number := kills.pop(0)) is not None:
            workers.members[number].close()
            result = run(workers, pairs, timeout_s)
            return {**result[0], number: "killed"}, result[1]
        return run(workers, pairs, timeout_s)

    monkeypatch.setattr(Workers, "run", run_and_kill)
    for _ in range(3):
        assert np.array_equal(bring(cache, mine, [0, 1, 0]), bring(plain, same, [0, 1, 0]))
    assert cache.counts["restarts"] == 2
    assert sorted(cache.live.values()) == [0, 1, 2, 3]
    plain.close()


@pytest.mark.parametrize(
    ("worlds", "names"),
    [(2, "world 0 at step 1, world 1 at step 1"), (3, "world 0 at step 1, world 1 at step 1 and 1 more")],
)
def test_a_step_that_kills_every_worker_is_an_error(worlds: int, names: str) -> None:
    cache, lines = cache_of("Meadow,fault=die,at=2", workers=1), [Line(number, 0) for number in range(worlds)]
    bring(cache, lines)
    bring(cache, lines, [1, 1, 1])
    with (
        pytest.warns(FallbackWarning),
        pytest.raises(ConfigError, match=f"{TRIES} workers were .* 0 with {names}, because .* code 3"),
    ):
        bring(cache, lines, [1, 1, 1])
    assert cache.counts["restarts"] == TRIES
    cache.close()


def test_an_error_of_the_environment_names_world_step_and_worker() -> None:
    cache = cache_of("Meadow,fault=raise,at=2")
    lines = [Line(n, n) for n in range(2)]
    bring(cache, lines)
    bring(cache, lines, [1, 1, 1])
    with pytest.raises(
        ConfigError, match=r"world 0, step 1, worker 0: step raised ValueError: the meadow is closed at"
    ):
        bring(cache, lines, [1, 1, 1])
    assert cache.live == {}
    cache.close()


def test_an_interrupt_leaves_no_answer_behind(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    line, twin = Line(0, 3), Line(0, 3)
    bring(cache, [line])
    bring(cache, [twin])
    expected = bring(cache, [twin], [1, 0, 1])

    def interrupt(*arguments: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Worker, "receive", interrupt)
        with pytest.raises(KeyboardInterrupt):
            cache.bring([Line(0, 9).start()])
    assert np.array_equal(bring(cache, [line], [1, 0, 1]), expected)


def test_an_environment_whose_seed_does_not_decide_is_noticed_once() -> None:
    cache, lines = cache_of("Meadow,fault=chance"), [Line(0, 1), Line(1, 2)]
    bring(cache, lines)
    bring(cache, lines, [1, 1, 1])
    cache._forget()
    with pytest.warns(FallbackWarning, match="went another way; draw all chance from self.np_random") as caught:
        bring(cache, lines, [1, 1, 1])
    assert len(caught) == 1
    assert cache.counts["inexact"] == 2
    cache.close()


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("always", r"reset\(seed=7\) gave other numbers on a used copy; draw all chance from self.np_random"),
        ("used", r"reset\(seed=7\) gave other numbers on a used copy;"),
        ("copies", r"reset\(seed=7\) gave other numbers in another copy;"),
        ("steps", r"a step after reset\(seed=7\) gave other numbers on a used copy;"),
    ],
)
def test_chance_that_does_not_follow_the_seed_is_noticed_before_the_first_step(kind: str, text: str) -> None:
    for workers in (1, 2):
        cache = cache_of(f"Chance,kind={kind}", workers)
        with pytest.warns(FallbackWarning, match=text) as caught:
            cache.check_chance()
        assert (len(caught), cache.counts["inexact"]) == (1, 1)
        cache.close()


def test_comparing_copies_changes_no_world(cache: Cache) -> None:
    mine, same = ([Line(n, n) for n in range(3)] for _ in range(2))
    plain = cache_of()
    for each, lines in ((cache, mine), (plain, same)):
        bring(each, lines)
    cache.check_chance()
    assert cache.reason == ""
    for moves in ([1, 1, 1], [0, 2, 1]):
        assert np.array_equal(bring(cache, mine, moves), bring(plain, same, moves))
    plain.close()


def test_an_environment_that_fails_while_copies_are_compared_says_so_where_it_is_used() -> None:
    cache = cache_of("Meadow,fault=raise,at=1")
    cache.check_chance()
    lines = [Line(0, 0)]
    bring(cache, lines)
    with pytest.raises(ConfigError, match="world 0, step 0, worker 0: step raised ValueError"):
        bring(cache, lines, [1, 1, 1])
    cache.close()


def test_environments_with_equal_settings_share_their_workers() -> None:
    origin = parse_external(f"{HERE}:Meadow")
    first, second = (cache_for(origin, describe(origin), 1, 8, 30.0) for _ in range(2))
    assert first is second
    assert cache_for(origin, first.description, 2, 8, 30.0) is not first
    first.bring([Line(0, 0).start()])
    process = first.workers.members[0].process  # type: ignore[union-attr]
    close_all()
    assert process.poll() is not None
    first.bring([Line(0, 0).start()])  # they start again
    close_all()
