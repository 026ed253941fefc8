"""Cross-play: groups of one team, each by a policy of its own, in all pairings of several players."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from torch import Tensor

from uavlab.core.cards import Table
from uavlab.core.errors import ConfigError
from uavlab.core.statistics import named_text
from uavlab.core.text import one_line
from uavlab.evaluation import Sides, interval
from uavlab.experiment import build
from uavlab.experiment.config import Config
from uavlab.experiment.policy import TrainedPolicy
from uavlab.experiment.schedules import ordered_scores
from uavlab.experiment.scores import baseline_policy, measure_policy, summarize, weigh

Player = TrainedPolicy | str | Callable[[Any], Tensor]


@dataclass(frozen=True, repr=False)
class CrossPlay:
    """Figures of every pairing; ``print`` shows the score of each group as a table.

    >>> play = ul.cross_play({"last": ul.train("pursuit", updates=1, progress=False), "random": "random"}, episodes=2)
    >>> play.rows[1]["players"]
    {'pursuers': 'last', 'evaders': 'random'}

    Attributes:
        groups: Names of the groups.
        players: Names of the players.
        rows: For each pairing ``players`` by group, ``scores`` of each group with their 95 % intervals (mean, low,
            high), and ``figures``, the ``Scores`` of the whole team. Intervals are over the seeds of players that were
            trained; where none of them has several seeds, over all episodes.
    """

    groups: tuple[str, ...]
    players: tuple[str, ...]
    rows: tuple[dict[str, Any], ...]

    def score(self, group: str, own: str, others: str) -> dict[str, float]:
        """Return the score of a group that ``own`` plays while ``others`` plays all other groups."""
        wanted = {name: own if name == group else others for name in self.groups}
        return next(row["scores"][group] for row in self.rows if row["players"] == wanted)

    def __repr__(self) -> str:
        """Return a table for each group: a row for each of its players, a column for that of the other groups."""
        lines = []
        for group in self.groups:
            against = [f"against {name}" for name in self.players]
            rows = [
                (f"  {player}", *(named_text(self.score(group, player, others)) for others in self.players))
                for player in self.players
            ]
            table = Table((f"score of {group} by", *against), rows)
            width = max(26, *(len(one_line(name)) + 10 for name in self.players))
            lines += table.lines(f"{{:{width}}}" + f"{{:>{width}}}" * len(self.players))
        return "\n".join(lines)


def cross_play(players: Mapping[str, Player], config: Config, count: int, seed: int, mean_action: bool) -> CrossPlay:
    """Score groups that meet: each group by one player, all other groups by one player, in every pairing."""
    env = config.evaluation
    if not players or not getattr(env, "group_scores", None):
        raise ConfigError(
            f"cross_play: got {len(players)} player(s) of {config.preset}; expected at least one, and an environment "
            "with group_scores, such as pursuit."
        )
    names = tuple(part.name for part in env.spec.parts)
    seeds = {*map(_seeds, players.values())}
    if len(seeds - {1}) > 1:
        raise ConfigError(f"cross_play: runs of {sorted(seeds)} seeds; expected equal numbers, or one seed.")
    runs = max(seeds)
    rt, rows = build.runtime(config.run, config.toggles), []
    policies = {
        name: player.batched_policy(env, seeds=runs)
        if isinstance(player, TrainedPolicy)
        else baseline_policy(config, player, env, rt)
        for name, player in players.items()
    }
    for pairing in _pairings(names, tuple(players)):
        sides = Sides(tuple(policies[name] for name in pairing))
        figures = measure_policy(config, rt, env, sides, runs, count, seed, mean_action)
        if alone := all(_seeds(players[name]) == 1 for name in pairing):
            figures = {name: values.reshape(1, -1) for name, values in figures.items()}
        weights = zip(names, ordered_scores(env), strict=True)
        scores = {name: vars(interval(weigh(score, figures))) for name, score in weights}
        figures_of_team = summarize(config, figures, runs * count if alone else count, rt.device)
        by_group = dict(zip(names, pairing, strict=True))
        rows.append({"players": by_group, "scores": scores, "figures": figures_of_team})
    return CrossPlay(names, tuple(players), tuple(rows))


def _seeds(player: Player) -> int:
    """Return how many seeds a player was trained with; 1 for one that was not trained."""
    return len(player.parameters) if isinstance(player, TrainedPolicy) else 1


def _pairings(groups: Sequence[str], players: Sequence[str]) -> list[tuple[str, ...]]:
    """Return the players of each group, once for every pairing of one group with all others."""
    pairs = product(range(len(groups)), players, players)
    teams = [tuple(own if n == group else others for n in range(len(groups))) for group, own, others in pairs]
    return list(dict.fromkeys(teams))
