"""The short lesson is one: it is learned, by every run, in seconds."""

from uavlab.experiment.config import configure
from uavlab_lab.lessons.toy_tasks import METRIC, course
from uavlab_lab.measure.compare import learning


def test_a_course_is_valid_settings() -> None:
    config = configure("leader_follower_quick", course(100, scores=5, runs=2))
    assert (config.run.updates, config.run.evaluate_every, config.run.runs) == (100, 20, 2)
    configure("slow_leader_follower_quick", course(3, step_ms=1.0, eval_step_ms=0.0))


def test_the_edge_is_learned() -> None:
    layer = course(80, scores=2, runs=3, device="cpu", evaluate_episodes=10)
    [row] = learning("leader_follower_quick", {"plainly": {}}, layer)
    each = row["curve"][-1]["each"][METRIC]
    assert sum(each) / 3 > -14  # a random flight loses about 27, and no run below is worse than that
    assert max(each) <= 0


def test_without_learning_it_is_not() -> None:
    layer = course(80, scores=1, runs=3, device="cpu", evaluate_episodes=10)
    [row] = learning("leader_follower_quick", {"mutant": {"lr": 1e-9}}, layer)
    assert sum(row["curve"][-1]["each"]["return"]) / 3 < -20
