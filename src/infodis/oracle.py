"""Distributions over token sequences whose every marginal and conditional is known exactly.

An oracle is three things at once: a sampler of data, an exact `log_prob` for any target and context, and an exact
`Predictor`. The tests of every estimator stand on that: with an oracle as predictor, what is estimated is known.

All of them answer one question, `given`: how likely some evidence is (a number for every position and token), summed
over all sequences, and the distribution of each token in its light. A visible token is evidence for itself alone, a
masked one for all alike, a noised one for what it may have been. `Table` sums over its list; chains run the
forward-backward recursion, vectorised over rows, on scaled float64 probabilities.
"""

import abc
import dataclasses
import functools
import math
from collections.abc import Iterable, Sequence

import torch
from jaxtyping import Float, Float64, Int
from torch import Tensor

from infodis.errors import InputError
from infodis.item import Item, Positions
from infodis.predictor import LogConditionals, Masks, Predictor, Surprisals, Tokens
from infodis.rng import stream, uniforms

Evidence = Float64[Tensor, "rows length vocab"]
Posterior = tuple[Float64[Tensor, " rows"], Float64[Tensor, "rows length vocab"]]

CHUNK = 256
"""Rows that a chain works on at a time: their forward variables stay in the processor's cache."""

NUMBERS = 2**24
"""Rows x places x states of a hidden Markov model that are kept at a time: bounds memory, changes no number."""


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Oracle(Predictor, abc.ABC):
    """An exact distribution. Tokens are 0 .. vocab_size - 1; the mask token is vocab_size."""

    vocab_size: int = dataclasses.field(init=False)
    mask_token: int = dataclasses.field(init=False)

    def _speak(self, vocab_size: int) -> None:
        object.__setattr__(self, "vocab_size", vocab_size)
        object.__setattr__(self, "mask_token", vocab_size)

    @abc.abstractmethod
    def sample(self, count: int, *, length: int, generator: torch.Generator) -> Tokens:
        """Draw `count` independent sequences."""

    @abc.abstractmethod
    def given(self, evidence: Evidence) -> Posterior:
        """Log of the sum over x of p(x) times the evidence for every x_i; and p(x_i = v | evidence), or all zeros."""

    def posterior(self, tokens: Tokens) -> Posterior:
        """Log p(visible tokens) of each row, and p(x_i = v | visible tokens), all zeros where those are impossible."""
        vocabulary = torch.arange(self.vocab_size)
        return self.given(((tokens.unsqueeze(-1) == vocabulary) | (tokens.unsqueeze(-1) == self.mask_token)).double())

    def log_evidence(self, tokens: Tokens) -> Float64[Tensor, " rows"]:
        """Log p(visible tokens) of each row."""
        return self.posterior(tokens)[0]

    @abc.abstractmethod
    def check_length(self, length: int) -> None:
        """Raise `InputError` if there is no distribution over sequences of that length."""

    def log_prob(
        self, tokens: Iterable[int] | Tensor, *, target: Positions | None = None, context: Positions | None = None
    ) -> float:
        """Log p(target tokens | context tokens) of one sequence, everything else summed out, exactly.

        -inf if the target is impossible; an error if the context is, since nothing is conditional on that.

        >>> coin = Independent(torch.tensor([0.25, 0.75]))
        >>> round(coin.log_prob([0, 1, 1], target=[0, 2], context=[1]), 6)
        -1.673976
        """
        return float(self.log_probs([Item.read(tokens, target=target, context=context)])[0])

    def log_probs(self, items: Sequence[Item]) -> Float64[Tensor, " items"]:
        """The same of many items of one length."""
        for item in items:
            item.check_vocabulary(vocab_size=self.vocab_size, mask_token=self.mask_token)
        rows = torch.full((2, len(items), items[0].length), self.mask_token)
        for number, item in enumerate(items):
            rows[:, number, item.context] = item.tokens[item.context]
            rows[0, number, item.target] = item.tokens[item.target]
        self._check_tokens(rows.flatten(0, 1))
        joint, given = self.log_evidence(rows.flatten(0, 1)).view(2, -1)
        if bool((given == -math.inf).any()):
            raise InputError("The context has probability zero under this oracle; nothing is conditional on it.")
        return joint - given

    def log_conditionals(self, tokens: Tokens) -> LogConditionals:
        log_evidence, probabilities = self._checked(tokens)
        impossible = log_evidence == -math.inf
        if impossible.any():
            raise InputError(
                f"The visible tokens of row {int(impossible.nonzero()[0])} have probability zero under this oracle, so "
                "the masked ones have no conditional distribution. `surprisal` answers inf there."
            )
        return probabilities.log()

    def surprisal(self, tokens: Tokens, masked: Masks) -> Surprisals:
        """As for any predictor; inf wherever the visible tokens are themselves impossible."""
        _, probabilities = self._checked(torch.where(masked, self.mask_token, tokens))
        picked = probabilities.gather(-1, tokens.unsqueeze(-1)).squeeze(-1)
        return torch.where(masked, -picked.log(), 0.0)

    def _checked(self, tokens: Tokens) -> Posterior:
        self._check_tokens(tokens)
        return self.posterior(tokens)

    def _check_tokens(self, tokens: Tokens) -> None:
        self.check_length(tokens.shape[1])
        if tokens.numel() and not (int(tokens.min()) >= 0 and int(tokens.max()) <= self.mask_token):
            raise InputError(f"Rows may hold tokens 0..{self.vocab_size - 1} and the mask token {self.mask_token}.")


def _distribution(values: Tensor, *, name: str) -> Float64[Tensor, "..."]:
    """Read probabilities along the last axis: float64, non-negative, summing to one."""
    read = torch.as_tensor(values, dtype=torch.float64)
    if read.ndim == 0 or read.shape[-1] == 0:
        raise InputError(f"{name} must hold at least one probability, got shape {tuple(read.shape)}.")
    totals = read.sum(-1, keepdim=True)
    if not bool((read >= 0).all()) or not bool(((totals - 1).abs() < 1e-6).all()):
        raise InputError(f"{name} must be probabilities that sum to 1 along the last axis (found {totals.min():.6g}).")
    return read / totals


def _choose(probabilities: Float[Tensor, "*rows choices"], *, generator: torch.Generator) -> Int[Tensor, "*rows"]:
    """One draw from each row, by inverting its cumulative distribution."""
    level = uniforms(*probabilities.shape[:-1], 1, generator=generator)
    cumulative = probabilities.cumsum(-1)
    drawn = (cumulative <= level * cumulative[..., -1:]).sum(-1)
    return drawn.clamp(max=probabilities.shape[-1] - 1)


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Table(Oracle):
    """Any list of distinct sequences of one length with their probabilities; everything else is impossible."""

    sequences: Int[Tensor, "entries length"]
    probabilities: Float[Tensor, " entries"]

    def __post_init__(self) -> None:
        sequences = torch.as_tensor(self.sequences).long()
        probabilities = _distribution(self.probabilities, name="Table probabilities")
        if sequences.ndim != 2 or sequences.shape[:1] != probabilities.shape or sequences.shape[1] == 0:
            raise InputError(
                f"A Table needs entries x length tokens and one probability per entry, got {tuple(sequences.shape)} "
                f"and {tuple(probabilities.shape)}."
            )
        if int(sequences.min()) < 0 or sequences.unique(dim=0).shape[0] < sequences.shape[0]:
            raise InputError("A Table's sequences must be distinct and hold no negative token.")
        object.__setattr__(self, "sequences", sequences)
        object.__setattr__(self, "probabilities", probabilities)
        self._speak(int(sequences.max()) + 1)

    @staticmethod
    def dna(seed: int = 0, *, entries: int = 128, length: int = 8, temperature: float = 0.5) -> "Table":
        """The paper's first toy: distinct random sequences over four letters, p = softmax(u / 0.5), u ~ U(0, 1)."""
        generator = stream(seed, "Table.dna")
        if not 1 <= entries <= 4**length:
            raise InputError(f"Length {length} has {4**length} sequences of four letters, {entries} were asked for.")
        codes = torch.randperm(4**length, generator=generator)[:entries]
        letters = codes.unsqueeze(1) // 4 ** torch.arange(length) % 4
        return Table(letters, torch.softmax(uniforms(entries, generator=generator) / temperature, dim=0))

    def check_length(self, length: int) -> None:
        if length != self.sequences.shape[1]:
            raise InputError(f"This Table answers sequences of length {self.sequences.shape[1]}, got length {length}.")

    def sample(self, count: int, *, length: int | None = None, generator: torch.Generator) -> Tokens:
        self.check_length(self.sequences.shape[1] if length is None else length)
        return self.sequences[_choose(self.probabilities.expand(count, -1), generator=generator)]

    def given(self, evidence: Evidence) -> Posterior:
        weight = self.probabilities.expand(len(evidence), -1)
        for position, token in enumerate(self.sequences.T):
            weight = weight * evidence[:, position, token]
        total = weight.sum(-1)
        one_hot = torch.nn.functional.one_hot(self.sequences, self.vocab_size).double()
        joint = torch.einsum("re,elv->rlv", weight, one_hot)
        return total.log(), joint / torch.where(total > 0, total, 1.0)[:, None, None]

    def __repr__(self) -> str:
        entries, length = self.sequences.shape
        return f"Table(entries={entries}, length={length}, vocab_size={self.vocab_size})"


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Independent(Oracle):
    """Tokens independent of each other: one distribution for all positions (any length), or one per position."""

    probabilities: Float[Tensor, "*length vocab"]

    def __post_init__(self) -> None:
        probabilities = _distribution(self.probabilities, name="Independent probabilities")
        if probabilities.ndim > 2:
            raise InputError(f"Independent takes vocab or length x vocab, got shape {tuple(probabilities.shape)}.")
        object.__setattr__(self, "probabilities", probabilities)
        self._speak(probabilities.shape[-1])

    def check_length(self, length: int) -> None:
        if self.probabilities.ndim == 2 and length != self.probabilities.shape[0]:
            raise InputError(f"This oracle answers sequences of length {self.probabilities.shape[0]}, got {length}.")

    def sample(self, count: int, *, length: int | None = None, generator: torch.Generator) -> Tokens:
        if length is None:
            if self.probabilities.ndim == 1:
                raise InputError("Say how long the sequences shall be: length=.")
            length = self.probabilities.shape[0]
        self.check_length(length)
        return _choose(self.probabilities.expand(count, length, -1), generator=generator)

    def given(self, evidence: Evidence) -> Posterior:
        joint = self.probabilities.expand(*evidence.shape[:2], -1) * evidence
        total = joint.sum(-1, keepdim=True)
        possible = total > 0
        conditional = joint / torch.where(possible, total, 1.0)
        return total.squeeze(-1).log().sum(-1), conditional * possible.all(1, keepdim=True)

    def __repr__(self) -> str:
        return f"Independent(shape={tuple(self.probabilities.shape)})"


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class _Chain(Oracle):
    """Forward-backward over hidden states. Variables are states x rows, scaled to sum to one at every step."""

    @abc.abstractmethod
    def _begin(self, evidence: Float64[Tensor, "length vocab rows"]) -> Float64[Tensor, "states rows"]:
        """p(state, evidence) at the first step, which may consume several positions."""

    @abc.abstractmethod
    def _forward(self, state: Tensor, evidence: Float64[Tensor, "vocab rows"]) -> Float64[Tensor, "states rows"]:
        """Move one position on and take in its evidence."""

    @abc.abstractmethod
    def _backward(self, future: Tensor, evidence: Float64[Tensor, "vocab rows"]) -> Float64[Tensor, "states rows"]:
        """Take in a position's evidence and move one position back."""

    @abc.abstractmethod
    def _tokens(self, state: Tensor, evidence: Float64[Tensor, "vocab rows"]) -> Float64[Tensor, "vocab rows"]:
        """The distribution of a position's token, from that of the state, which has taken the evidence in."""

    @abc.abstractmethod
    def _first_tokens(self, state: Tensor, evidence: Tensor) -> Float64[Tensor, "first vocab rows"]:
        """The distributions of the tokens that the first step consumed."""

    def check_length(self, length: int) -> None:
        if length < 1:
            raise InputError("A sequence must hold at least one token.")

    def given(self, evidence: Evidence) -> Posterior:
        parts = [self._given(chunk.permute(1, 2, 0).contiguous()) for chunk in evidence.split(CHUNK)]
        return torch.cat([part[0] for part in parts]), torch.cat([part[1] for part in parts])

    def _given(self, evidence: Float64[Tensor, "length vocab rows"]) -> Posterior:
        states, log_evidence = self._filter(evidence)
        steps = len(states) - 1
        future = torch.ones_like(states[-1])
        found: list[Tensor] = []
        for step in range(steps, 0, -1):
            here = evidence[len(evidence) - 1 - steps + step]
            found.append(_normalised(self._tokens(states[step] * future, here)))
            future, _ = _scaled(self._backward(future, here))
        first = _normalised(self._first_tokens(states[0] * future, evidence))
        smoothed = torch.cat([first, *(part.unsqueeze(0) for part in reversed(found))]).permute(2, 0, 1)
        return log_evidence, smoothed * (log_evidence > -math.inf)[:, None, None]

    def _filter(self, evidence: Float64[Tensor, "length vocab rows"]) -> tuple[list[Tensor], Float64[Tensor, " rows"]]:
        """The forward variables of all steps and the log of their scales, which is the log-probability of the row."""
        state, scale = _scaled(self._begin(evidence))
        states, log_evidence = [state], scale.log()
        for given in evidence[self._first_length(len(evidence)) :]:
            state, scale = _scaled(self._forward(state, given))
            states.append(state)
            log_evidence = log_evidence + scale.log()
        return states, log_evidence

    @abc.abstractmethod
    def _first_length(self, length: int) -> int:
        """How many positions the first step consumes."""


def _scaled(variable: Float[Tensor, "states rows"]) -> tuple[Tensor, Tensor]:
    """Scale each row to sum to one; a row of zeros (impossible evidence) stays zeros."""
    scale = variable.sum(0)
    return variable / torch.where(scale > 0, scale, 1.0), scale


def _normalised(weights: Float64[Tensor, "*steps vocab rows"]) -> Tensor:
    total = weights.sum(-2, keepdim=True)
    return weights / torch.where(total > 0, total, 1.0)


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class HiddenMarkov(_Chain):
    """A hidden Markov model: `initial` over states, `transitions` state -> state, `emissions` state -> token."""

    initial: Float[Tensor, "..."]
    transitions: Float[Tensor, "..."]
    emissions: Float[Tensor, "..."]
    dtype: torch.dtype = torch.float64
    """What surprisals are computed in."""

    def __post_init__(self) -> None:
        for name in ("initial", "transitions", "emissions"):
            object.__setattr__(self, name, _distribution(getattr(self, name), name=f"HiddenMarkov {name}"))
        states = self.initial.numel()
        if self.transitions.shape != (states, states) or self.emissions.shape[:-1] != (states,):
            raise InputError(
                f"With {states} states, transitions must be {states} x {states} and emissions {states} x vocab, got "
                f"{tuple(self.transitions.shape)} and {tuple(self.emissions.shape)}."
            )
        self._speak(self.emissions.shape[1])

    @staticmethod
    def random(*, states: int, vocab_size: int, temperature: float = 0.5, seed: int = 0) -> "HiddenMarkov":
        """All rows softmax(u / temperature) with u uniform on [0, 1)."""
        generator = stream(seed, "HiddenMarkov.random")
        shapes = ((states,), (states, states), (states, vocab_size))
        initial, transitions, emissions = (
            torch.softmax(uniforms(*shape, generator=generator) / temperature, dim=-1) for shape in shapes
        )
        return HiddenMarkov(initial, transitions, emissions)

    def sample(self, count: int, *, length: int, generator: torch.Generator) -> Tokens:
        self.check_length(length)
        state = _choose(self.initial.expand(count, -1), generator=generator)
        drawn = []
        for _ in range(length):
            drawn.append(_choose(self.emissions[state], generator=generator))
            state = _choose(self.transitions[state], generator=generator)
        return torch.stack(drawn, dim=1)

    def surprisal(self, tokens: Tokens, masked: Masks) -> Surprisals:
        """As for any oracle, but without distributions over the vocabulary."""
        self._check_tokens(torch.where(masked, self.mask_token, tokens))
        hidden = masked | (tokens == self.mask_token)
        step = max(1, NUMBERS // (self.initial.numel() * tokens.shape[1]))
        parts = [self._surprisal(*part) for part in zip(tokens.split(step), hidden.split(step), strict=True)]
        return torch.where(masked, torch.cat(parts), 0.0) if parts else torch.zeros(tokens.shape, dtype=self.dtype)

    def _surprisal(self, tokens: Tokens, hidden: Masks) -> Surprisals:
        _, transitions, emissions = self._tables
        expected, _ = self._expected(tokens, hidden)
        ahead, found = torch.ones_like(expected[0]), torch.zeros(tokens.shape, dtype=self.dtype)
        for place in reversed(range(tokens.shape[1])):
            emitted, joint = emissions.index_select(1, tokens[:, place]), expected[place] * ahead
            chosen = (joint * emitted).sum(0)
            found[:, place] = torch.where(chosen > 0, (joint.sum(0) / chosen).log(), math.inf)
            ahead, _ = _scaled(transitions @ torch.where(hidden[:, place], ahead, ahead * emitted))
        return found

    def log_evidence(self, tokens: Tokens) -> Float64[Tensor, " rows"]:
        return self._expected(tokens, tokens == self.mask_token)[1].double()

    def _expected(
        self, tokens: Tokens, hidden: Masks
    ) -> tuple[list[Float[Tensor, "states rows"]], Float[Tensor, " rows"]]:
        """p(state | visible tokens before its place), place by place, and log p(all visible tokens)."""
        initial, transitions, emissions = self._tables
        state, found = initial.unsqueeze(1).expand(-1, len(tokens)), []
        log_evidence = torch.zeros(len(tokens), dtype=self.dtype)
        for place in range(tokens.shape[1]):
            found.append(state)
            emitted = emissions.index_select(1, tokens[:, place])
            state, scale = _scaled(torch.where(hidden[:, place], state, state * emitted))
            log_evidence = log_evidence + scale.log()
            state = transitions.T @ state
        return found, log_evidence

    @functools.cached_property
    def _tables(self) -> tuple[Tensor, Tensor, Tensor]:
        """Initial, transitions and emissions to compute with. The mask token has a column too, never looked at."""
        emissions = torch.cat([self.emissions, self.emissions[:, :1]], dim=1)
        return self.initial.to(self.dtype), self.transitions.to(self.dtype), emissions.to(self.dtype)

    def _first_length(self, length: int) -> int:
        return 1

    def _begin(self, evidence: Tensor) -> Tensor:
        return self.initial.unsqueeze(1) * (self.emissions @ evidence[0])

    def _forward(self, state: Tensor, evidence: Tensor) -> Tensor:
        return (self.transitions.T @ state) * (self.emissions @ evidence)

    def _backward(self, future: Tensor, evidence: Tensor) -> Tensor:
        return self.transitions @ (future * (self.emissions @ evidence))

    def _tokens(self, state: Tensor, evidence: Tensor) -> Tensor:
        taken_in = self.emissions @ evidence
        before = state / torch.where(taken_in > 0, taken_in, 1.0)
        return evidence * (self.emissions.T @ before)

    def _first_tokens(self, state: Tensor, evidence: Tensor) -> Tensor:
        return self._tokens(state, evidence[0]).unsqueeze(0)

    def __repr__(self) -> str:
        return f"HiddenMarkov(states={self.initial.numel()}, vocab_size={self.vocab_size})"


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class MarkovChain(_Chain):
    """A Markov chain of any order: p(x_i | the `order` tokens before it), from `initial` over the first `order` tokens.

    `transitions` has order + 1 axes of size vocab, oldest token first; `initial` has `order` axes and defaults to the
    stationary distribution, so that a window of a long sequence has the same law at every place.
    """

    transitions: Float[Tensor, "..."]
    initial: Float[Tensor, "..."] | None = None
    start: Float64[Tensor, "..."] = dataclasses.field(init=False)
    """The distribution of the first `order` tokens."""

    def __post_init__(self) -> None:
        transitions = _distribution(self.transitions, name="MarkovChain transitions")
        vocab_size = transitions.shape[-1]
        if transitions.ndim < 2 or set(transitions.shape) != {vocab_size}:
            raise InputError(f"A chain of order n needs n + 1 axes of one size, got shape {tuple(transitions.shape)}.")
        object.__setattr__(self, "transitions", transitions)
        self._speak(vocab_size)
        object.__setattr__(self, "start", self._start())

    def _start(self) -> Float64[Tensor, "..."]:
        if self.initial is None:
            return _stationary(self.transitions)
        expected = tuple(self.transitions.shape[:-1])
        if tuple(self.initial.shape) != expected:
            raise InputError(f"initial must have shape {expected}, got {tuple(self.initial.shape)}.")
        return _distribution(self.initial.flatten(), name="MarkovChain initial").view(expected)

    @staticmethod
    def random(*, order: int = 4, vocab_size: int = 4, temperature: float = 0.5, seed: int = 0) -> "MarkovChain":
        """The paper's second toy: every row of the transition table softmax(u / temperature), u uniform on [0, 1)."""
        _check_order(order, vocab_size)
        u = uniforms(*(vocab_size,) * (order + 1), generator=stream(seed, "MarkovChain.random"))
        return MarkovChain(torch.softmax(u / temperature, dim=-1))

    @staticmethod
    def dirichlet(*, order: int = 4, vocab_size: int = 4, seed: int = 0) -> "MarkovChain":
        """Every row of the transition table from Dirichlet(1/2, ..., 1/2): squares of normal numbers, normalised.

        Much more peaked than `random`: rows have an entropy of 0.88 nats on average with four letters, not 1.27.
        """
        _check_order(order, vocab_size)
        u = uniforms(*(vocab_size,) * (order + 1), generator=stream(seed, "MarkovChain.dirichlet"))
        squares = torch.erfinv(u.clamp(min=2.0**-60)).square()
        return MarkovChain(squares / squares.sum(-1, keepdim=True))

    @staticmethod
    def counted(rows: Tokens, *, order: int, vocab_size: int, prior: float = 0.5) -> "MarkovChain":
        """The chain of the frequencies in some rows; `prior` is what every count begins with."""
        _check_order(order, vocab_size)
        if rows.ndim != 2 or rows.shape[1] <= order or not prior > 0:
            raise InputError(
                f"Counting needs rows of more than {order} tokens and prior > 0; got rows of shape "
                f"{tuple(rows.shape)} and prior {prior:g}."
            )
        if rows.numel() and not 0 <= int(rows.min()) <= int(rows.max()) < vocab_size:
            raise InputError(f"Tokens must be 0 .. {vocab_size - 1}, got {int(rows.min())} .. {int(rows.max())}.")
        powers = vocab_size ** torch.arange(order, -1, -1)
        codes = sum(rows[:, place : rows.shape[1] - order + place] * powers[place] for place in range(order + 1))
        seen = torch.as_tensor(codes).flatten().bincount(minlength=vocab_size ** (order + 1)).double() + prior
        counts = seen.view((vocab_size,) * (order + 1))
        return MarkovChain(counts / counts.sum(-1, keepdim=True))

    @property
    def order(self) -> int:
        return self.transitions.ndim - 1

    def sample(self, count: int, *, length: int, generator: torch.Generator) -> Tokens:
        self.check_length(length)
        state = _choose(self.start.flatten().expand(count, -1), generator=generator)
        powers = self.vocab_size ** torch.arange(self.order - 1, -1, -1)
        drawn = [state.unsqueeze(1) // powers % self.vocab_size]
        table = self.transitions.reshape(-1, self.vocab_size)
        for _ in range(length - self.order):
            token = _choose(table[state], generator=generator)
            drawn.append(token.unsqueeze(1))
            state = (state * self.vocab_size + token) % table.shape[0]
        return torch.cat(drawn, dim=1)[:, :length]

    def _first_length(self, length: int) -> int:
        return min(length, self.order)

    def _begin(self, evidence: Tensor) -> Tensor:
        first = self._first_length(len(evidence))
        joint = self.start.sum(tuple(range(first, self.order))) if first < self.order else self.start
        state = joint.unsqueeze(-1)
        for axis in range(first):
            shape = [1] * first + [evidence.shape[-1]]
            shape[axis] = self.vocab_size
            state = state * evidence[axis].view(shape)
        return state.reshape(-1, evidence.shape[-1])

    def _step(self) -> Float64[Tensor, "history new old"]:
        """Transitions as one matrix per shared history: a state (a, h) moves to (h, e) with matrix[h, e, a]."""
        return self.transitions.reshape(self.vocab_size, -1, self.vocab_size).permute(1, 2, 0)

    def _forward(self, state: Tensor, evidence: Tensor) -> Tensor:
        old = state.view(self.vocab_size, -1, state.shape[-1]).transpose(0, 1)
        return (torch.bmm(self._step(), old) * evidence).reshape_as(state)

    def _backward(self, future: Tensor, evidence: Tensor) -> Tensor:
        new = future.view(-1, self.vocab_size, future.shape[-1]) * evidence
        return torch.bmm(self._step().transpose(1, 2), new).transpose(0, 1).reshape_as(future)

    def _tokens(self, state: Tensor, evidence: Tensor) -> Tensor:
        return state.view(-1, self.vocab_size, state.shape[-1]).sum(0)

    def _first_tokens(self, state: Tensor, evidence: Tensor) -> Tensor:
        first = self._first_length(len(evidence))
        block = state.view(*(self.vocab_size,) * first, state.shape[-1])
        return torch.stack(
            [block.sum([a for a in range(first) if a != axis]) if first > 1 else block for axis in range(first)]
        )

    def __repr__(self) -> str:
        return f"MarkovChain(order={self.order}, vocab_size={self.vocab_size})"


def _check_order(order: int, vocab_size: int) -> None:
    if order < 1 or vocab_size < 1 or vocab_size ** (order + 1) > 2**24:
        raise InputError(
            f"A chain needs order >= 1 and at most 2^24 transition entries, got order {order} over {vocab_size} "
            "tokens. Use Independent for order 0, HiddenMarkov for a long memory."
        )


def _stationary(transitions: Float64[Tensor, "*history vocab"], *, steps: int = 100_000) -> Float64[Tensor, "*history"]:
    """The distribution over `order` tokens that one step leaves unchanged, by power iteration on half-lazy steps."""
    state = torch.full_like(transitions[..., 0], 1.0 / transitions[..., 0].numel())
    for _ in range(steps):
        moved = (state.unsqueeze(-1) * transitions).sum(0)
        change = float((moved - state).abs().sum())
        state = (state + moved) / 2  # laziness: a periodic chain converges too
        if change < 1e-14:
            return state / state.sum()
    raise InputError(
        f"No stationary distribution found in {steps} steps (still changing by {change:.2g}). Give initial= yourself."
    )
