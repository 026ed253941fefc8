"""G attention networks of the same architecture over rows and columns, such as UAVs and targets, of any number.

An input lists N rows, then M columns, each by F features, then for rows and for columns the number of neighbours. The
first feature of a slot says whether it counts, the next two are its place. Rows attend to their nearest columns and to
their nearest rows; how many is an input, so that it may differ from world to world while shapes stay. As in
``nets.mlp``, a network is a row of one matrix.

Source:
    Vaswani et al. 2017, "Attention Is All You Need", in the form with LayerNorm before each part.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from uavlab.core.types import Entities
from uavlab.nets.mlp import StackedNet, affine

AWAY = 5  # features of one place as seen from another
INNER = 16  # hidden units between them and the weights of attention
CLOSED = -3e4  # score of what a row does not attend to; within the range of float16

Weights = Iterator[tuple[Tensor, Tensor]]
"""Weight and bias of each layer that is still to come."""


@dataclass(frozen=True)
class StackedAttention(StackedNet):
    """Layers of attention of rows to columns and to rows, then a head: logits of pairs, or one value.

    A head for pairs returns logits of all (row, column, move); one for values the mean over rows and columns that
    count. Nothing depends on the order of rows or columns, nor on how many slots are empty.

    Attributes:
        entities: Layout of inputs and moves.
        hidden: Width of embeddings (H), a multiple of ``heads``.
        heads: Heads of attention.
        layers: Layers of attention.
        pairs: Whether the head is for pairs.
        positions: Whether attention and the head for pairs see how columns and rows lie from a row; without, places
            still say which are the nearest, and are among the features of each.
    """

    entities: Entities
    hidden: int
    heads: int
    layers: int
    pairs: bool
    positions: bool = True

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
        return [*first, *layer * self.layers, *(pair if self.pairs else self._value)]

    @property
    def _value(self) -> list[tuple[int, ...]]:
        return [(2 * self.hidden, self.hidden), (self.hidden, 1)]

    def initial_for(
        self, noise: Float[Tensor, "*lead P"], center: Float[Tensor, "*lead I"], scale: Float[Tensor, "*lead I"]
    ) -> Float[Tensor, "*lead P"]:
        """Turn noise into initial parameters; features of entities are of about 1 and are taken as they are."""
        return self.initial(noise)

    def __call__(self, theta: Float[Tensor, "G P"], x: Float[Tensor, "G N I"]) -> Float[Tensor, "G N out"]:
        """Evaluate network g on inputs x[g]."""
        pieces = self.unpack(theta)
        take = iter(zip(pieces[::2], pieces[1::2], strict=True))
        row, column, near = self.entities.split(x)
        counts = [each[..., 0] > 0 for each in (row, column)]
        to_columns, to_rows = away(row, column), away(row, row)
        near_columns = nearest(to_columns[..., 2], counts[1], near[..., 1])
        near_rows = nearest(to_rows[..., 2], counts[0], near[..., 0])
        if not self.positions:
            to_columns, to_rows = torch.zeros_like(to_columns), torch.zeros_like(to_rows)
        u, t = dense(row, *next(take)), dense(column, *next(take))
        of_columns, of_rows = self._scores(take, to_columns, near_columns), self._scores(take, to_rows, near_rows)
        t = norm(t)
        keys = dense(t, *next(take)).chunk(2 * self.layers, -1)
        for layer in range(self.layers):
            key, value = keys[2 * layer : 2 * layer + 2]
            u = u + self._attend(take, dense(norm(u), *next(take)), key, value, of_columns[layer])
            query, key, value = dense(norm(u), *next(take)).chunk(3, -1)
            u = u + self._attend(take, query, key, value, of_rows[layer])
            u = u + dense(dense(norm(u), *next(take)).relu(), *next(take))
        wide = torch.promote_types(theta.dtype, torch.float32)
        u = norm(u)
        if self.pairs:
            own, other, between = dense(u, *next(take)), dense(t, *next(take)), dense_pairs(to_columns, *next(take))
            hidden = (own[..., :, None, :] + other[..., None, :, :] + between).relu()
            with torch.autocast(x.device.type, enabled=False):
                return dense_pairs(hidden.to(wide), *(each.to(wide) for each in next(take))).flatten(2)
        pooled = torch.cat([mean_of(each, count) for each, count in zip((u, t), counts, strict=True)], -1)
        hidden = affine(pooled, *next(take)).relu()
        with torch.autocast(x.device.type, enabled=False):
            return affine(hidden.to(wide), *(each.to(wide) for each in next(take)))

    def _scores(self, take: Weights, between: Tensor, seen: Bool[Tensor, "G N U T"]) -> list[tuple[Tensor, Tensor]]:
        """Return for each layer what places add to the scores of attention, and which rows attend to anything."""
        bias = dense_pairs(dense_pairs(between, *next(take)).relu(), *next(take))
        bias = bias.masked_fill(~seen[..., None], CLOSED).movedim(-1, 2)  # G N layers*heads U T
        some = seen.any(-1, keepdim=True)
        return [(each, some) for each in bias.chunk(self.layers, 2)]

    def _attend(
        self, take: Weights, query: Tensor, key: Tensor, value: Tensor, scores: tuple[Tensor, Tensor]
    ) -> Float[Tensor, "G N U H"]:
        """Return what rows take over from what they attend to; nothing where a row attends to nothing."""
        bias, some = scores
        query, key, value = (each.unflatten(-1, (self.heads, -1)).transpose(2, 3) for each in (query, key, value))
        lead = query.shape[:2]
        query, key, value, bias = (each.flatten(0, 1) for each in (query, key, value, bias.to(query.dtype)))
        with torch.autocast(query.device.type, enabled=False):  # torch.func.grad would mix types
            result = F.scaled_dot_product_attention(query, key, value, attn_mask=bias).unflatten(0, lead)
        return dense(result.transpose(2, 3).flatten(3) * some, *next(take))


def away(row: Float[Tensor, "G N U F"], column: Float[Tensor, "G N T F"]) -> Float[Tensor, "G N U T 5"]:
    """Return how each column lies from each row: x, y, distance, and x and y of the direction."""
    offset = column[..., None, :, 1:3] - row[..., :, None, 1:3]
    distance = offset.square().sum(-1, keepdim=True).clamp_min(1e-12).sqrt()
    return torch.cat((offset, distance, offset / distance.clamp_min(1e-3)), -1)


def nearest(
    distance: Float[Tensor, "G N U T"], counts: Bool[Tensor, "G N T"], near: Float[Tensor, "G N"]
) -> Bool[Tensor, "G N U T"]:
    """Mark the ``near`` nearest of those that count, for each row."""
    apart = distance.masked_fill(~counts[..., None, :], torch.inf)
    first = torch.ones(apart.shape[-1], apart.shape[-1], dtype=torch.bool, device=apart.device).tril(-1)  # of equals
    mine, other = apart[..., :, None], apart[..., None, :]
    rank = ((other < mine) | ((other == mine) & first)).sum(-1)  # counting is faster than sorting such short rows
    return (rank < near[..., None, None]) & counts[..., None, :]


def norm(x: Float[Tensor, "*lead H"]) -> Float[Tensor, "*lead H"]:
    """Normalise features to mean 0 and variance 1, without scale and shift as in ``StackedMLP``."""
    return F.layer_norm(x, x.shape[-1:])


def mean_of(x: Float[Tensor, "G N U H"], counts: Bool[Tensor, "G N U"]) -> Float[Tensor, "G N H"]:
    """Return the mean over what counts; 0 if nothing does."""
    weight = counts.to(x.dtype)[..., None]
    return (x * weight).sum(2) / weight.sum(2).clamp_min(1)


def dense(x: Float[Tensor, "G N U I"], weight: Float[Tensor, "G I O"], bias: Float[Tensor, "G _ O"]) -> Tensor:
    """Apply a linear layer of each network to all rows of all inputs."""
    return affine(x.flatten(1, 2), weight, bias).unflatten(1, x.shape[1:3])


def dense_pairs(x: Float[Tensor, "G N U T I"], weight: Float[Tensor, "G I O"], bias: Float[Tensor, "G _ O"]) -> Tensor:
    """Apply a linear layer of each network to all pairs of all inputs."""
    return affine(x.flatten(1, 3), weight, bias).unflatten(1, x.shape[1:4])
