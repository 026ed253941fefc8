"""G attention networks of the same architecture over rows and columns, such as UAVs and targets, of any number.

An input lists N rows, then M columns, each by F features, then for rows and for columns the number of neighbours. The
first feature of a slot says whether it counts, the next two are its place. Rows attend to their nearest columns and to
their nearest rows; how many is an input, so that it may differ from world to world while shapes stay. As in
``nets.mlp``, a network is a row of one matrix.

Source:
    Vaswani et al. 2017, "Attention Is All You Need", in the form with LayerNorm before each part.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from uavlab.core.types import Entities
from uavlab.nets.mlp import StackedNet, affine

AWAY = 5  # features of one place as seen from another
INNER = 16  # hidden units between them and the weights of attention
NOTHING = -3e4  # score of attending to nothing; within the range of float16
PARTS = 6  # linear parts of a layer
LARGE = 8.0 * 2**20  # bytes of embeddings; a layer stores twenty times as many for its backward pass

Weights = Iterator[tuple[Tensor, Tensor]]
"""Weight and bias of each layer that is still to come."""


@dataclass(frozen=True)
class StackedAttention(StackedNet):
    """Layers of attention of rows to columns and to rows, then a head: logits of pairs, or one value.

    A head for pairs returns logits of all (row, column, move); one for values the mean over rows and columns that
    count. Nothing depends on the order of rows or columns, nor on how many slots are empty.
    """

    entities: Entities
    hidden: int  # width of embeddings (H), a multiple of ``heads``
    heads: int
    layers: int
    pairs: bool
    positions: bool = True  # whether attention and the head for pairs see how columns and rows lie from a row
    recompute: float = math.inf  # bytes of embeddings of rows from which on layers are computed again in backward

    @property
    def weights(self) -> list[tuple[int, ...]]:
        """Shapes of one network's weights.

        First two embeddings, the weights by places for columns and for rows, keys and values of columns; then for each
        layer of attention to columns and to rows, and a dense part; then the head.
        """
        wide, features = self.hidden, self.entities.features
        places = [(AWAY, INNER), (INNER, self.heads * self.layers)]
        layer = [(wide, wide), (wide, wide), (wide, 3 * wide), (wide, wide), (wide, 2 * wide), (2 * wide, wide)]
        small = max(wide // 2, 1)
        pair = [(wide, small), (wide, small), (AWAY, small), (small, self.entities.moves)]
        first = [(features, wide), (features, wide), *places, *places, (wide, 2 * wide * self.layers)]
        return [*first, *layer * self.layers, *(pair if self.pairs else [(2 * wide, wide), (wide, 1)])]

    def initial_for(
        self, noise: Float[Tensor, "*lead P"], center: Float[Tensor, "*lead I"], scale: Float[Tensor, "*lead I"]
    ) -> Float[Tensor, "*lead P"]:
        """Turn noise into initial parameters; features of entities are of about 1 and are taken as they are."""
        return self.initial(noise)

    def __call__(self, theta: Float[Tensor, "G P"], x: Float[Tensor, "G N I"]) -> Float[Tensor, "G N out"]:
        pieces = self.unpack(theta)
        take = iter(zip(pieces[::2], pieces[1::2], strict=True))
        row, column, near = self.entities.split(x)
        counts = [each[..., 0] > 0 for each in (row, column)]
        to_columns, to_rows = away(row, column), away(row, row)
        near_columns = nearest(to_columns[:, 2], counts[1], near[..., 1])
        near_rows = nearest(to_rows[:, 2], counts[0], near[..., 0])
        if not self.positions:
            to_columns, to_rows = torch.zeros_like(to_columns), torch.zeros_like(to_rows)
        u, t = (in_full(affine, each.flatten(1, 2), *next(take)) for each in (row, column))
        of_columns, of_rows = self._scores(take, to_columns, near_columns), self._scores(take, to_rows, near_rows)
        t = norm(t)
        keys = affine(t, *next(take)).chunk(2 * self.layers, -1)
        for number in range(self.layers):
            places = of_columns[number], of_rows[number]
            layer: Callable[..., Tensor] = self._layer
            if torch.is_grad_enabled() and u.nbytes >= self.recompute:  # nothing is random in a layer
                layer = partial(checkpoint, layer, use_reentrant=False, preserve_rng_state=False)
            u = layer(u, *keys[2 * number : 2 * number + 2], *places, *islice(take, PARTS))
        u = norm(u)
        if self.pairs:
            return self._logits(take, u, t, to_columns)
        pooled = [mean_of(each.unflatten(1, some.shape[1:]), some) for each, some in zip((u, t), counts, strict=True)]
        return in_full(affine, affine(torch.cat(pooled, -1), *next(take)).relu(), *next(take))

    def _scores(
        self, take: Weights, places: Float[Tensor, "G 5 N T U"], seen: Bool[Tensor, "G N T U"]
    ) -> tuple[Float[Tensor, "G heads N T+1 U"], ...]:
        """Return for each layer what places add to the scores of attention.

        After all others comes a thing of value 0, to which rows attend that attend to nothing else.
        """
        inner = in_full(affine_first, places.flatten(2), *next(take)).relu()
        bias = affine_first(inner, *next(take)).unflatten(2, seen.shape[1:])
        bias = bias.masked_fill(~seen[:, None], -torch.inf)
        return F.pad(bias, (0, 0, 0, 1), value=NOTHING).chunk(self.layers, 1)

    def _layer(
        self,
        u: Float[Tensor, "G rows H"],
        key: Float[Tensor, "G columns H"],
        value: Float[Tensor, "G columns H"],
        of_columns: Float[Tensor, "G heads N K U"],
        of_rows: Float[Tensor, "G heads N L U"],
        *parts: tuple[Tensor, Tensor],
    ) -> Float[Tensor, "G rows H"]:
        """Return the embeddings of rows after they attend to columns and to rows, and a dense part changes each."""
        ask, give, ask_rows, give_rows, inner, outer = parts
        u = u + affine(self._attend(affine(norm(u), *ask), key, value, of_columns), *give)
        query, key, value = affine(norm(u), *ask_rows).chunk(3, -1)
        u = u + affine(self._attend(query, key, value, of_rows), *give_rows)
        return u + affine(affine(norm(u), *inner).relu(), *outer)

    def _attend(
        self,
        query: Float[Tensor, "G rows H"],
        key: Float[Tensor, "G columns H"],
        value: Float[Tensor, "G columns H"],
        bias: Float[Tensor, "G heads N K U"],
    ) -> Float[Tensor, "G rows H"]:
        """Return what rows take over from what they attend to.

        The softmax is along K, not the last axis, and so acts on whole vectors of the processor. Without the thing of
        value 0, products for 6 UAVs and 4 targets would have fewer than 400 multiplications; torch does them ten times
        slower.
        """
        lead = bias.shape[:3]
        query, key, value = (
            each.unflatten(1, (lead[2], -1)).unflatten(-1, (self.heads, -1)).permute(0, 3, 1, 2, 4)
            for each in (query, key, value)
        )
        key, value = (F.pad(each, (0, 0, 0, 1)).flatten(0, 2) for each in (key, value))
        query = query.flatten(0, 2).transpose(1, 2)
        scale = (self.hidden // self.heads) ** -0.5
        weight = torch.baddbmm(bias.flatten(0, 2), key, query, alpha=scale).softmax(1)
        result = torch.bmm(weight.transpose(1, 2).to(value.dtype), value)
        return result.unflatten(0, lead).permute(0, 2, 3, 1, 4).flatten(3).flatten(1, 2)

    def _logits(
        self,
        take: Weights,
        u: Float[Tensor, "G rows H"],
        t: Float[Tensor, "G columns H"],
        places: Float[Tensor, "G 5 N T U"],
    ) -> Float[Tensor, "G N moves"]:
        worlds, columns, rows = places.shape[2:]
        own = affine(u, *next(take)).unflatten(1, (worlds, 1, rows))
        other = affine(t, *next(take)).unflatten(1, (worlds, columns, 1))
        between = in_full(affine, places.flatten(2).transpose(1, 2), *next(take)).unflatten(1, (worlds, columns, rows))
        logits = in_full(affine, (own + other + between).relu().flatten(1, 3), *next(take))
        return logits.unflatten(1, (worlds, columns, rows)).transpose(2, 3).flatten(2)


def away(row: Float[Tensor, "G N U F"], column: Float[Tensor, "G N T F"]) -> Float[Tensor, "G 5 N T U"]:
    """Return how each column lies from each row: x, y, distance, and x and y of the direction."""
    start, end = (each[..., 1:3].movedim(-1, 1) for each in (row, column))
    offset = end[..., None] - start[..., None, :]
    distance = offset.square().sum(1, keepdim=True).clamp_min(1e-12).sqrt()
    return torch.cat((offset, distance, offset / distance.clamp_min(1e-3)), 1)


def nearest(
    distance: Float[Tensor, "G N T U"], counts: Bool[Tensor, "G N T"], near: Float[Tensor, "G N"]
) -> Bool[Tensor, "G N T U"]:
    """Mark the ``near`` nearest of those that count, for each row."""
    apart = distance.masked_fill(~counts[..., None], torch.inf)
    count = apart.shape[-2]
    first = torch.ones(count, count, dtype=torch.bool, device=apart.device).tril(-1)[..., None]  # of equals
    mine, other = apart[..., :, None, :], apart[..., None, :, :]
    rank = ((other < mine) | ((other == mine) & first)).sum(-2)  # counting is faster than sorting such short rows
    return (rank < near[..., None, None]) & counts[..., None]


def norm(x: Float[Tensor, "*lead H"]) -> Float[Tensor, "*lead H"]:
    """Normalise features to mean 0 and variance 1, without scale and shift as in ``StackedMLP``."""
    return F.layer_norm(x, x.shape[-1:])


def mean_of(x: Float[Tensor, "G N U H"], counts: Bool[Tensor, "G N U"]) -> Float[Tensor, "G N H"]:
    """Return the mean over what counts; 0 if nothing does."""
    weight = counts.to(x.dtype)[..., None]
    return (x * weight).sum(2) / weight.sum(2).clamp_min(1)


def affine_first(
    x: Float[Tensor, "G I N"], weight: Float[Tensor, "G I O"], bias: Float[Tensor, "G 1 O"]
) -> Float[Tensor, "G O N"]:
    """Apply a linear layer where features are the first axis of an input."""
    return torch.baddbmm(bias.transpose(1, 2), weight.transpose(1, 2), x)


def in_full(layer: Callable[..., Tensor], x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Apply a first or last layer in the precision of parameters, and at least in float32."""
    wide = torch.promote_types(weight.dtype, torch.float32)
    with torch.autocast(x.device.type, enabled=False):
        return layer(*(each.to(wide) for each in (x, weight, bias)))
