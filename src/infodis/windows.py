"""Conditionals of a Markov chain from windows: states are the hidden tokens among the last few, not all of them.

A state of a chain of order n is its last n tokens. Where some of these are visible, they have one value each, so that
the forward-backward recursion needs vocab^hidden states instead of vocab^n: one between visible tokens, all of them
only in the midst of long masked runs. Rows are worked on side by side, position by position, in groups of equal
**patterns** (which tokens of a window are hidden). Where the oldest token of a window counts by its class only, it has
as many states as there are classes.
"""

import dataclasses
import functools
import math
from collections.abc import Iterator

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

Pattern = tuple[bool, ...]
"""Which tokens of a window are hidden, the oldest first."""

Message = Float[Tensor, "_states rows"]
Pieces = list[tuple[Tensor, Tensor]]
Groups = dict[Pattern, tuple[Tensor, Tensor]]
"""Rows with one pattern, and a number for every value of the hidden tokens of their window, the oldest first."""

STATES = 2**25
"""Numbers (rows x positions x states) that are kept at a time: bounds memory, changes no number."""


@dataclasses.dataclass(frozen=True, eq=False)
class ChainWindows:
    """A chain by its table of transitions, whose first axis may be classes of the oldest token.

    `start` is the distribution of the first tokens, as many as the order. Classes need an order of at least 2.
    """

    transitions: Float[Tensor, "..."]
    start: Float[Tensor, "..."]
    classes: Int[Tensor, " vocab"]

    @property
    def order(self) -> int:
        return self.start.ndim

    @property
    def vocab_size(self) -> int:
        return self.transitions.shape[-1]

    @property
    def class_count(self) -> int:
        return self.transitions.shape[0]

    def surprisal(
        self, tokens: Int[Tensor, "rows length"], hidden: Bool[Tensor, "rows length"]
    ) -> Float[Tensor, "rows length"]:
        """-log p of every hidden token given the visible ones, inf where those are impossible; 0 at visible ones.

        Rows must be at least `order` tokens long.
        """
        found = torch.zeros(tokens.shape, dtype=self.transitions.dtype)
        for rows in self._chunks(hidden):
            found[rows] = _WindowRows(self, tokens[rows], hidden[rows]).surprisal()
        return found

    def log_prob(
        self, tokens: Int[Tensor, "rows length"], hidden: Bool[Tensor, "rows length"]
    ) -> Float[Tensor, " rows"]:
        """Log p of all visible tokens of every row. Rows must be at least `order` tokens long."""
        return _WindowRows(self, tokens, hidden).forward()[1]

    def _chunks(self, hidden: Bool[Tensor, "rows length"]) -> Iterator[Int[Tensor, " some"]]:
        """Rows in portions that fit into memory; those with about as many states together."""
        near = hidden.double().unfold(1, self.order, 1).sum(-1)
        states = (self.vocab_size**near).sum(1) * self.class_count / self.vocab_size
        order = states.argsort()
        portion = (states[order].cumsum(0) / STATES).long()
        yield from order.split(portion.unique_consecutive(return_counts=True)[1].tolist())

    @functools.cached_property
    def _tables(self) -> dict[tuple[Pattern, bool], Tensor]:
        return {}

    def table(self, pattern: Pattern, *, first: bool = False) -> Float[Tensor, "hidden visible"]:
        """Transitions, or the first tokens' distribution, with a row for all values of hidden tokens."""
        if (pattern, first) not in self._tables:
            whole = self.start if first else self.transitions
            axes = [n for n, hides in enumerate(pattern) if hides]
            states = math.prod(whole.shape[axis] for axis in axes)
            axes += [n for n, hides in enumerate(pattern) if not hides]
            self._tables[pattern, first] = whole.permute(axes).reshape(states, -1).contiguous()
        return self._tables[pattern, first]

    @functools.cached_property
    def steps(self) -> Float[Tensor, "middle new old"]:
        """Transitions of windows that are hidden altogether, as a matrix for every value of the tokens in between."""
        return self.transitions.reshape(self.class_count, -1, self.vocab_size).permute(1, 2, 0).contiguous()

    @property
    def coarse(self) -> bool:
        """Whether the oldest token counts by its class only."""
        return self.class_count < self.vocab_size


@dataclasses.dataclass(frozen=True, eq=False)
class _WindowRows:
    """Some rows of one length. A state's oldest token is a class, except in the first window."""

    chain: ChainWindows
    tokens: Int[Tensor, "rows length"]
    hidden: Bool[Tensor, "rows length"]

    def surprisal(self) -> Float[Tensor, "rows length"]:
        forward, _ = self.forward()
        found = torch.zeros(self.tokens.shape, dtype=self.chain.transitions.dtype)
        ahead: Groups = {pattern: (rows, torch.ones_like(state)) for pattern, (rows, state) in forward[-1].items()}
        for step in range(len(forward) - 1, -1, -1):
            end = self.chain.order - 1 + step
            for pattern, (rows, state) in forward[step].items():
                joint = state * ahead[pattern][1]
                for back in range(self.chain.order if step == 0 else 1):
                    if pattern[-1 - back]:
                        found[rows, end - back] = self._picked(joint, pattern, rows, end, back)
            if step > 0:
                ahead = self._backward(forward[step - 1], ahead, end)
        return found

    def _picked(self, joint: Message, pattern: Pattern, rows: Tensor, end: int, back: int) -> Float[Tensor, " rows"]:
        """-log p of the token `back` places before the end of a window, from the distribution of its hidden tokens."""
        size = self.chain.vocab_size
        newer = size ** sum(pattern[len(pattern) - back :]) if back else 1
        token = self.tokens[rows, end - back].expand(joint.shape[0] // newer // size, 1, newer, -1)
        chosen = joint.view(-1, size, newer, len(rows)).gather(1, token).sum((0, 1, 2))
        return torch.where(chosen > 0, (joint.sum(0) / chosen).log(), math.inf)

    def forward(self) -> tuple[list[Groups], Float[Tensor, " rows"]]:
        """p(hidden tokens of the window | all visible tokens so far), window by window; log p of all visible ones."""
        order, total = self.chain.order, torch.zeros(len(self.tokens), dtype=self.chain.transitions.dtype)
        codes = (self.hidden[:, :order].long() << torch.arange(order)).sum(1)
        pieces: dict[Pattern, Pieces] = {}
        for code in codes.unique().tolist():
            pattern, rows = tuple(bool(code >> n & 1) for n in range(order)), (codes == code).nonzero().squeeze(1)
            pieces[pattern] = [(rows, self._gathered(pattern, rows, 0, first=True))]
        found = [self._grouped(pieces, order, total)]
        for end in range(order, self.tokens.shape[1]):
            pieces = {}
            for pattern, (rows, state) in found[-1].items():
                for whole, some in self._continued(pattern, rows, end):
                    before = self._classed(state[:, some], whole) if end == order else state[:, some]
                    moved = self._move(whole, rows[some], before, end)
                    pieces.setdefault(whole[1:], []).append((rows[some], moved))
            found.append(self._grouped(pieces, end + 1, total))
        return found, total

    def _backward(self, before: Groups, ahead: Groups, end: int) -> Groups:
        """p(visible tokens from `end` on | the window before it), up to a factor, from that of the window at `end`."""
        place = torch.zeros(len(self.tokens), dtype=torch.int64)
        for rows, _ in ahead.values():
            place[rows] = torch.arange(len(rows))
        found: Groups = {}
        for pattern, (rows, _) in before.items():
            messages = []
            for whole, some in self._continued(pattern, rows, end):
                message = ahead[whole[1:]][1].index_select(1, place[rows[some]])
                message = self._move_back(whole, rows[some], message, end)
                messages.append(self._unclassed(message, whole) if end == self.chain.order else message)
            found[pattern] = (rows, _scaled(messages[0] if len(messages) == 1 else torch.cat(messages, dim=1))[0])
        return found

    def _grouped(self, pieces: dict[Pattern, Pieces], end: int, total: Float[Tensor, " all"]) -> Groups:
        """Pieces of one pattern together, scaled. Rows whose next token, at `end`, is visible come first."""
        found: Groups = {}
        for pattern, parts in pieces.items():
            rows = torch.cat([part[0] for part in parts])
            state = parts[0][1] if len(parts) == 1 else torch.cat([part[1] for part in parts], dim=1)
            if end < self.hidden.shape[1]:
                order = self.hidden[rows, end].long().argsort(stable=True)
                if bool((order[1:] < order[:-1]).any()):
                    rows, state = rows[order], state.index_select(1, order)
            state, scale = _scaled(state)
            total[rows] += scale.log()
            found[pattern] = (rows, state)
        return found

    def _continued(self, pattern: Pattern, rows: Tensor, end: int) -> Iterator[tuple[Pattern, slice]]:
        """The patterns that a group goes on to with the token at `end`, and where their rows stand in it."""
        visible = len(rows) - int(self.hidden[rows, end].sum())
        if visible:
            yield (*pattern, False), slice(0, visible)
        if visible < len(rows):
            yield (*pattern, True), slice(visible, len(rows))

    def _move(self, pattern: Pattern, rows: Tensor, state: Message, end: int) -> Message:
        """Sum the oldest token of a window out and take a new one in."""
        old, new = self._sizes(pattern)
        if all(pattern):
            moved = torch.bmm(self.chain.steps, state.reshape(old, -1, len(rows)).transpose(0, 1)).flatten(0, 1)
        else:
            table = self._gathered(pattern, rows, end - self.chain.order).view(old, -1, new, len(rows))
            product = state.reshape(old, -1, 1, len(rows)) * table
            moved = (product.sum(0) if old > 1 else product[0]).flatten(0, 1)
        return self._classed(moved, pattern[1:])

    def _move_back(self, pattern: Pattern, rows: Tensor, ahead: Message, end: int) -> Message:
        """What is known from a window on, as seen from the window before."""
        old, new = self._sizes(pattern)
        ahead = self._unclassed(ahead, pattern[1:])
        if all(pattern):
            moved = torch.bmm(self.chain.steps.transpose(1, 2), ahead.view(-1, new, len(rows)))
            return moved.transpose(0, 1).flatten(0, 1)
        table = self._gathered(pattern, rows, end - self.chain.order).view(old, -1, new, len(rows))
        product = table * ahead.view(1, -1, new, len(rows))
        return (product.sum(2) if new > 1 else product.squeeze(2)).flatten(0, 1)

    def _sizes(self, pattern: Pattern) -> tuple[int, int]:
        """How many values the oldest and the newest token of a window have."""
        return (self.chain.class_count if pattern[0] else 1), (self.chain.vocab_size if pattern[-1] else 1)

    def _classed(self, state: Message, pattern: Pattern) -> Message:
        """Of the oldest token only the class, if it is hidden."""
        if not (pattern[0] and self.chain.coarse):
            return state
        tokens = state.reshape(self.chain.vocab_size, -1)
        known = torch.zeros(self.chain.class_count, tokens.shape[1], dtype=state.dtype)
        return known.index_add_(0, self.chain.classes, tokens).view(-1, state.shape[1])

    def _unclassed(self, message: Message, pattern: Pattern) -> Message:
        """The same for all tokens of a class."""
        if not (pattern[0] and self.chain.coarse):
            return message
        known = message.reshape(self.chain.class_count, -1)
        return known.index_select(0, self.chain.classes).view(-1, message.shape[1])

    def _gathered(self, pattern: Pattern, rows: Tensor, begin: int, *, first: bool = False) -> Message:
        """The part of a table that the visible tokens of a window from `begin` on leave open."""
        code = torch.zeros(len(rows), dtype=torch.int64)
        for offset, hides in enumerate(pattern):
            if not hides:
                token = self.tokens[rows, begin + offset]
                classed = offset == 0 and not first
                code = code * self.chain.vocab_size + (self.chain.classes[token] if classed else token)
        return self.chain.table(pattern, first=first).index_select(1, code)


def _scaled(message: Message) -> tuple[Message, Float[Tensor, " rows"]]:
    """Columns that sum to one, so that long rows do not underflow, and their sums. Impossible ones stay zeros."""
    total = message.sum(0)
    return message.div_(torch.where(total > 0, total, 1.0)), total
