"""Transfer: how a policy that was trained on teams of one size does in teams of other sizes, without training."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from uavlab.core import bootstrap
from uavlab.core.errors import ConfigError
from uavlab.core.text import one_line
from uavlab.experiment.policy import TrainedPolicy
from uavlab.experiment.scores import measure, measure_baseline

FAILED = 0.5  # ratio below which a transfer counts as failed: the published threshold


@dataclass(frozen=True, repr=False)
class Transfer:
    """Scores by size; ``print`` shows them as a table.

    >>> table = ul.transfer(run, [1, 3], episodes=4)
    >>> table.metric, [row["size"] for row in table.rows]
    ('completion', [1, 3])

    Attributes:
        metric: Name of the figure that is compared.
        home: Its mean, with the ends of its 95 % interval, on the run's own evaluation task.
        rows: For each ``size`` the ``settings`` that it changes, ``score`` and ``ratio`` to that at home, each with its
            95 % interval (mean, low, high; a ratio is None where home is 0), and ``plans``, scores of baselines by
            name.
    """

    metric: str
    home: dict[str, float]
    rows: tuple[dict[str, Any], ...]

    def __repr__(self) -> str:
        """Return a line for each size."""
        plans = [*self.rows[0]["plans"]]
        head = f"{'size':>6} {one_line(self.metric):>26} {'ratio to home':>26}" + "".join(
            f"{one_line(p):>26}" for p in plans
        )
        lines = [head, f"{'home':>6} {_cell(self.home):>26}"]
        for row in self.rows:
            others = "".join(f"{_cell(row['plans'][plan]):>26}" for plan in plans)
            lines.append(f"{row['size']:6} {_cell(row['score']):>26} {_cell(row['ratio']):>26}{others}")
        return "\n".join([*lines, *([self.advice] if self.failed else [])])

    @property
    def failed(self) -> list[int]:
        """The sizes whose score is below ``FAILED`` of that at home; none where home is not above 0."""
        ratios = {row["size"]: row["ratio"] for row in self.rows}
        return [size for size, each in ratios.items() if each and self.home["mean"] > 0 and each["mean"] < FAILED]

    @property
    def advice(self) -> str:
        """What to try where a policy fails."""
        sizes, names = ", ".join(map(str, self.failed)), ", ".join(self.rows[0]["settings"])
        return (
            f"failed, below {FAILED:g} of home: size {sizes}. Train on more sizes ({names}; a curriculum) and on "
            "worlds as varied as those to act in, and see that observations stay in the range of training. Compare "
            "with a plan, because larger worlds may be harder for any policy."
        )


def transfer(
    trained: TrainedPolicy, sizes: Sequence[int], count: int, seed: int, mean_action: bool, plans: Sequence[str] = ()
) -> Transfer:
    """Score a policy in teams of other sizes, ``count`` episodes of each seed at each size.

    Raises:
        ConfigError: There is no size, the environment does not say which settings are sizes, a size is out of range,
            or the policy cannot act in other teams.
    """
    config, env = trained.config, trained.config.evaluation
    names = getattr(env, "sizes", ())
    if not names:
        raise ConfigError(
            f"transfer: {type(env).__name__} does not say which settings are sizes of a team; name them in its class: "
            "sizes = (NAME, ...)."
        )
    if not sizes or min(sizes) < 1:
        raise ConfigError(f"transfer: got sizes {list(sizes)}; expected whole numbers from 1 on.")
    metric = next(iter(env.score))
    home = measure(trained, count, seed, mean_action)[metric].double().cpu().numpy()
    rows = []
    for size in sizes:
        settings = {name: (size, size) if isinstance(getattr(env, name), tuple) else size for name in names}
        other = resized(env, settings)
        figures = measure(trained, count, seed, mean_action, other)[metric].double().cpu().numpy()
        rows.append(
            {
                "size": size,
                "settings": settings,
                "score": _ends(_mean(figures)),
                "ratio": ratio(figures, home),
                "plans": {
                    plan: _ends(
                        _mean(measure_baseline(config, plan, count, seed, other)[metric].double().cpu().numpy())
                    )
                    for plan in plans
                },
            }
        )
    return Transfer(metric, _ends(_mean(home)), tuple(rows))


def resized(env: Any, settings: dict[str, Any]) -> Any:
    """Return an environment with other sizes.

    Raises:
        ConfigError: Its rules do not allow them.
    """
    for fields, holds, message in getattr(env, "rules", ()):
        given = {**vars(env), **settings}
        if all(name in given for name in fields) and not holds(*(given[name] for name in fields)):
            raise ConfigError(f"transfer: {message.format(*(given[name] for name in fields))}.")
    return replace(env, **settings)


def ratio(figures: np.ndarray, home: np.ndarray) -> dict[str, float] | None:
    """Return the ratio of two means (runs, episodes), with its interval; None where the second one is 0.

    Of several runs the interval is Student's of the ratios of runs; of one run both means are bootstrapped.
    """
    if not home.mean(1).all():
        return None
    if len(home) > 1:
        return _ends(bootstrap.student(figures.mean(1) / home.mean(1)))
    rng = np.random.default_rng(0)
    draws = [rng.choice(each[0], (bootstrap.DRAWS, each.shape[1])).mean(1) for each in (figures, home)]
    with np.errstate(divide="ignore", invalid="ignore"):
        low, high = np.quantile(draws[0] / draws[1], bootstrap.ENDS)
    return _ends((float(figures.mean() / home.mean()), float(low), float(high)))


def _mean(figures: np.ndarray) -> bootstrap.Ends:
    return bootstrap.student(figures.mean(1)) if len(figures) > 1 else bootstrap.interval(figures[0])


def _ends(ends: bootstrap.Ends) -> dict[str, float]:
    return dict(zip(("mean", "low", "high"), ends, strict=True))


def _cell(figure: dict[str, float] | None) -> str:
    return "no ratio to 0" if figure is None else "{mean:.3f} [{low:.3f}, {high:.3f}]".format(**figure)
