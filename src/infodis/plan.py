"""Mask plans: which masks of which sequences to look at, with their weights, drawn once and used by many.

An `nll` draws its own masks. Training cannot leave it at that: policy and reference, new and old policy, this process
and another one must look at the **same** masks, or the noise of the masks drowns their difference. So masks come as a
value. `infodis.draw_plan` makes one, `infodis.log_likelihood` evaluates a model on it.

The masks of a sequence are named by its content, the seed and the step. Other sequences of the batch do not matter, nor
does the process that draws them.
"""

import dataclasses
import functools
import hashlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, SupportsIndex

import torch
from jaxtyping import Bool, Float32, Float64, Int
from torch import Tensor

from infodis.auto import Blocks, in_blocks
from infodis.blocks import BlockLayout, blocks_of
from infodis.design import LONGEST_ENUMERATION, Dealt, Enumerate, MaskDesign, key_count, numbers_of
from infodis.errors import InputError
from infodis.files import atomic_file
from infodis.item import Item, Tokens, Vocabulary, check_is_predictor, check_items, read_items
from infodis.rng import check_seed

NEITHER, CONTEXT, TARGET, PADDING = range(4)
"""What a position of a saved sequence is for."""

Sequences = Tokens | Sequence[Sequence[Any]]
"""Texts, sequences of token ids, items, or pairs (prompt, response) of texts or of token ids."""


class PlanTensors(NamedTuple):
    """A plan as other training loops take it; see `MaskPlan.tensors`."""

    noisy: Int[Tensor, "sequences draws length"]
    """Token ids with the mask token where a draw masks; padded with zeros behind the end of a sequence."""
    masked: Bool[Tensor, "sequences draws length"]
    """Where a draw masks a target token."""
    weight: Float32[Tensor, "sequences draws length"]
    """What the surprisal of a masked token counts; zero elsewhere."""
    tokens: Int[Tensor, "sequences length"]
    """The clean token ids: what a loss calls labels."""
    visible: Bool[Tensor, "sequences length"]
    """False where there is padding: what models of transformers call attention_mask."""


@dataclasses.dataclass(frozen=True)
class PlanSettings:
    """What a plan was drawn for, and how."""

    vocab_size: int
    mask_token: int
    blocks: BlockLayout | None
    """In which masks were drawn, each by itself; None for masks of whole targets."""
    design: str
    seed: int
    step: int

    @staticmethod
    def read(settings: dict[str, Any]) -> "PlanSettings":
        """What `dataclasses.asdict` made of some."""
        blocks = settings["blocks"]
        return PlanSettings(**settings | {"blocks": None if blocks is None else BlockLayout(**blocks)})


@dataclasses.dataclass(frozen=True, eq=False)
class MaskPlan:
    """Weighted masks of some sequences. Sum weight x surprisal over the draws of a sequence: an unbiased `nll`.

    Make one with `infodis.draw_plan`. Draws may come in several independent **replicates**, whose mean is the estimate
    and whose spread says how sure it is.

    >>> import infodis
    >>> from infodis.oracle import MarkovChain
    >>> plan = infodis.draw_plan(MarkovChain.random(order=1, vocab_size=3), [[0, 1, 2, 0], [2, 1]], evaluations=4)
    >>> plan
    MaskPlan(2 sequences, 7 forward passes, 1 replicate(s), Dealt(slope=0.75, power=0.0), seed=0, step=0)
    """

    items: tuple[Item, ...]
    sequence: Int[Tensor, " draws"]
    """To which item a draw belongs."""
    replicate: Int[Tensor, " draws"]
    masked: Bool[Tensor, "draws length"]
    weight: Float64[Tensor, "draws length"]
    """Within its replicate: each replicate is an estimate of its own."""
    settings: PlanSettings

    def __repr__(self) -> str:
        what = f"{len(self.items)} sequences, {self.evaluations} forward passes, {self.replicates} replicate(s)"
        return f"MaskPlan({what}, {self.settings.design}, seed={self.settings.seed}, step={self.settings.step})"

    def __len__(self) -> int:
        """How many sequences there are."""
        return len(self.items)

    @property
    def replicates(self) -> int:
        return int(self.replicate.max()) + 1

    @property
    def width(self) -> int:
        """Tokens of the longest sequence."""
        return self.masked.shape[1]

    @functools.cached_property
    def lengths(self) -> Int[Tensor, " sequences"]:
        """Tokens of every sequence."""
        return torch.tensor([item.length for item in self.items])

    @functools.cached_property
    def tokens(self) -> Int[Tensor, "sequences length"]:
        """The clean tokens, zeros behind the end of a sequence."""
        return _padded([item.clean for item in self.items], self.width)

    @functools.cached_property
    def hidden(self) -> Bool[Tensor, "sequences length"]:
        """Positions that are masked in every draw: those in neither target nor context."""
        return _padded([item.hidden for item in self.items], self.width)

    def starts(self, blocks: BlockLayout | None) -> Int[Tensor, " sequences"]:
        """The position that the blocks of every sequence are counted from."""
        if blocks is None:
            return torch.zeros(len(self), dtype=torch.int64)
        return torch.cat([blocks.starts(item.target.unsqueeze(0)) for item in self.items])

    @functools.cached_property
    def distinct(self) -> tuple[Int[Tensor, " passes"], Int[Tensor, " draws"]]:
        """Draws that take a forward pass, and for every draw the number of its pass.

        Equal masks of a sequence share a pass. A draw that masks nothing needs none: its number does not matter.
        """
        rows = torch.cat([self.sequence.unsqueeze(1), self.masked.long()], dim=1)
        _, number = rows.unique(dim=0, return_inverse=True)
        first = torch.full((int(number.max()) + 1,), len(rows)).scatter_reduce(
            0, number, torch.arange(len(rows)), "amin"
        )
        wanted = self.masked[first].any(1)
        place = torch.where(wanted, wanted.cumsum(0) - 1, 0)
        return first[wanted], place[number]

    @property
    def evaluations(self) -> int:
        """Forward passes that it takes."""
        return len(self.distinct[0])

    @functools.cached_property
    def fingerprint(self) -> str:
        """A hash of all that is in the plan: sequences, masks, weights, vocabulary, design, seed and step."""
        digest = hashlib.sha256(json.dumps(dataclasses.asdict(self.settings), sort_keys=True).encode())
        for name, part in sorted(self._state().items()):
            digest.update(f"{name}{tuple(part.shape)}{part.dtype}".encode() + part.numpy().tobytes())
        return digest.hexdigest()

    def tensors(self) -> PlanTensors:
        """The plan as `[sequences, draws, length]` tensors, for training loops that call their model themselves.

        With `nll` the model's -log p of `tokens` at every position of `noisy`, in float32,

            log p = -(weight * nll).sum((1, 2))

        Draws are padded with empty ones of weight zero where a sequence has fewer. Weights are divided by the number of
        replicates, so that the sum is their mean.

        How they enter other people's loops, each of which runs `noisy.flatten(0, 1)` through the model with `visible`
        (repeated for every draw) as `attention_mask`. Policy, reference and old policy read the same tensors: a
        reference that is computed before training, on other masks, gives the noise of the masks back.

        - **TRL**: `infodis.train.trl` does it all. By hand: where a trainer computes log-probabilities of a batch.
          `DPOTrainer` takes its rows as [all chosen, then all rejected]: draw the plan in that order, and leave
          `precompute_ref_log_probs` off. The sum above replaces its sum of per-token log-probabilities, shift by one
          token included: a masked model answers at the place of the token. TRL's GRPO wants one number a token of the
          completion: `-(weight * nll).sum(1)` at those places, which adds up to log p, with
          `importance_sampling_level="sequence"`, because only the sequence has a likelihood.
        - **verl, DARE**: DARE's actors read `perturbed_seq`, `mask_indices` and `p_mask`, all `[batch, draws, length]`,
          from the batch, divide token losses by `p_mask` and average over draws. Put `noisy`, `masked` and
          `1 / (weight * weight.shape[1])` there (1 where the weight is 0) before reference or old log-probabilities are
          computed; DARE then divides log p by the response length, which is a smaller beta. Rows alternate chosen,
          rejected. Save the plan (`save`) where updates run in another process.
        - **dllm**: its trainers draw a time, mask, and weight the cross-entropy of masked tokens. `noisy` takes the
          place of `noised_input_ids`, `masked` of the mask, `weight` of the loss weights, without any further
          normalisation by tokens or by time.
        """
        counts = torch.bincount(self.sequence, minlength=len(self))
        place = torch.arange(len(self.sequence)) - (counts.cumsum(0) - counts)[self.sequence]
        shape = (len(self), int(counts.max()), self.width)
        masked, weight = torch.zeros(shape, dtype=torch.bool), torch.zeros(shape)
        masked[self.sequence, place] = self.masked
        weight[self.sequence, place] = (self.weight / self.replicates).float()
        visible = torch.arange(self.width) < self.lengths.unsqueeze(1)
        hidden = masked | self.hidden.unsqueeze(1)
        noisy = torch.where(hidden, self.settings.mask_token, self.tokens.unsqueeze(1))
        return PlanTensors(noisy, masked, weight, self.tokens, visible)

    def check_model(self, predictor: Vocabulary) -> None:
        """Raise `InputError` for a model of other tokens or larger blocks than those that the plan was drawn for.

        Masks that were drawn in blocks have the right law inside them, and inside parts of them, alone.
        """
        check_is_predictor(predictor)
        drawn, found = self.settings.vocab_size, predictor.vocab_size
        if drawn != found:
            raise InputError(
                f"A plan must be evaluated with the tokens that it was drawn for: {drawn} of them, got a model with "
                f"{found}. Draw a plan for this model, or load the right one."
            )
        ours, its = self.settings.blocks, blocks_of(predictor)
        if ours is not None and (its is None or not its.divides(ours)):
            raise InputError(
                f"Masks that were drawn in blocks are wrong outside of them: this plan was drawn in {ours}, got a "
                f"model {'that sees whole rows' if its is None else f'of {its}'}. Draw the plan for the model that has "
                "the larger blocks, or sees whole rows: it serves both."
            )
        if its is not None and ours != its:
            check_items(predictor, self.items)

    def save(self, path: str | Path) -> None:
        """Write the plan to a file of safetensors, to be replayed by `MaskPlan.load`: by another process, or later."""
        from safetensors.torch import save_file

        about = {"settings": json.dumps(dataclasses.asdict(self.settings)), "fingerprint": self.fingerprint}
        with atomic_file(Path(path)) as unfinished:
            save_file(self._state(), unfinished, metadata=about)

    @staticmethod
    def load(path: str | Path) -> "MaskPlan":
        """A plan that was saved. It must have the fingerprint that it was saved with."""
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(path, framework="pt") as file:
                about, state = file.metadata() or {}, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no dict
            plan = _restored(state, PlanSettings.read(json.loads(about["settings"])))
            whole = plan.fingerprint == about["fingerprint"]
        except (SafetensorError, OSError, KeyError, TypeError, ValueError, IndexError, RuntimeError) as error:
            raise InputError(f"A saved plan must be a file that MaskPlan.save wrote, got {path}: {error}.") from error
        if not whole:
            raise InputError(
                f"A saved plan must have the fingerprint that it was saved with; {path} has changed since. Draw it "
                "anew, or take the file from where it came."
            )
        return plan

    def _state(self) -> dict[str, Tensor]:
        return {
            "tokens": _padded([item.tokens for item in self.items], self.width),
            "role": _padded([_roles(item) for item in self.items], self.width, PADDING),
            "sequence": self.sequence,
            "replicate": self.replicate,
            "masked": self.masked,
            "weight": self.weight,
        }


def draw_plan(
    model: Vocabulary,
    rows: Sequences,
    *,
    evaluations: int = 4,
    design: MaskDesign | None = None,
    seed: SupportsIndex = 0,
    step: int = 0,
    replicates: int = 1,
) -> MaskPlan:
    """Masks for some sequences, to be shared by all models that are compared on them.

    Args:
        model: any `Predictor`, for its vocabulary; it is not run. Text needs one with a tokenizer.
        rows: texts, pairs (prompt, response) of texts or of token ids, token ids (a tensor of two axes holds many
            sequences), or what `Model.read` returns. Of a pair the response is the target, the prompt its context.
        evaluations: forward passes to spend on each sequence, at most.
        design: where to look. All designs are unbiased; they differ in variance. The default is `Dealt`, whose
            gradients have the least error with 1 to 16 evaluations; where the evaluations are enough for all masks of a
            target, these are taken (`Enumerate`). On a block diffusion model masks are drawn in every block by itself.
        seed, step: name the masks, together with the content of a sequence. Take a new step for every update.
        replicates: independent groups of draws, which share the evaluations. One is best for training: draws of one
            group complement each other. Two or more tell the variance of the estimate, and allow losses to be debiased.

    >>> import infodis
    >>> model = infodis.load("text8-tiny", trainable=True)
    >>> plan = infodis.draw_plan(model, [("the capital of france is ", "paris"), "a text"], evaluations=4, step=7)
    >>> plan
    MaskPlan(2 sequences, 8 forward passes, 1 replicate(s), Dealt(slope=0.75, power=0.0), seed=0, step=7)
    >>> tuple(plan.tensors().noisy.shape)
    (2, 4, 30)
    """
    number = check_seed(seed)
    _check_budget(evaluations, replicates)
    if design is not None and not isinstance(design, MaskDesign):
        raise InputError(f"design must be a value like Dealt(), got {design!r}.")
    items = _read_rows(model, rows)
    check_items(model, items)
    chosen, named = repr(design or Dealt()), check_seed(step)
    settings = PlanSettings(model.vocab_size, model.mask_token, blocks_of(model), chosen, number, named)
    rows_each = evaluations // replicates
    designs = [_design_for(model, item, design or _default_design(item, rows_each)) for item in items]
    drawn = [
        _draw(item, its, rows_each, number, step, r)
        for item, its in zip(items, designs, strict=True)
        for r in range(replicates)
    ]
    width = max(item.length for item in items)
    counts = torch.tensor([len(masked) for masked, _ in drawn])
    owner = torch.arange(len(drawn)).repeat_interleave(counts)
    masked, weight = (torch.cat([_widened(one[part], width) for one in drawn]) for part in (0, 1))
    return MaskPlan(tuple(items), owner // replicates, owner % replicates, masked, weight, settings)


def _check_budget(evaluations: int, replicates: int) -> None:
    if replicates < 1 or evaluations < replicates or evaluations % replicates:
        raise InputError(
            f"The evaluations of a plan must be a multiple of its replicates, at least one each; got "
            f"evaluations={evaluations}, replicates={replicates}. Ask for evaluations={max(1, replicates) * 4}."
        )


def _default_design(item: Item, rows: int) -> MaskDesign:
    length = item.target.numel()
    return Enumerate() if length <= LONGEST_ENUMERATION and 2**length - 1 <= rows else Dealt()


def _design_for(model: Vocabulary, item: Item, design: MaskDesign) -> MaskDesign:
    """In every block of the target, if the model has blocks."""
    blocks = blocks_of(model)
    if blocks is None or isinstance(design, Blocks):
        return design.over(() if blocks is None else blocks.sizes(item.target))
    return in_blocks(design, blocks.sizes(item.target))


def _draw(item: Item, design: MaskDesign, rows: int, seed: int, step: int, replicate: int) -> tuple[Tensor, Tensor]:
    """One replicate of an item: masks and weights over all of its positions."""
    length = item.target.numel()
    layout = design.fewest_replicates(length, rows)
    paths = [(item.key, "plan", step, replicate, part) for part in range(layout.replicates)]
    masked, weight = design.masks(*numbers_of(key_count(design, length), layout, seed=seed, paths=paths))
    masked, weight = masked.flatten(0, 1), weight.flatten(0, 1) / layout.replicates
    places = item.target.expand(len(masked), -1)
    empty = torch.zeros(len(masked), item.length)
    return empty.bool().scatter(1, places, masked), empty.double().scatter(1, places, weight)


def _read_rows(model: Vocabulary, rows: Sequences) -> list[Item]:
    """Items of rows of all kinds."""
    if isinstance(rows, str | Item | Tensor):
        return read_items(model, rows)[0]
    listed: list[Any] = list(rows)
    return read_items(model, [_read_pair(model, *row) if _is_pair(row) else row for row in listed])[0]


def _is_pair(row: Any) -> bool:
    return isinstance(row, tuple | list) and len(row) == 2 and all(isinstance(part, Iterable) for part in row)


def _read_pair(model: Vocabulary, prompt: Any, response: Any) -> Item:
    """A prompt and a response, two texts or two sequences of token ids, as one row."""
    texts = [isinstance(part, str) for part in (prompt, response)]
    if all(texts):
        return read_items(model, response, prompt=prompt)[0][0]
    if any(texts):
        raise InputError(
            f"Prompt and response must both be texts or both token ids, got {prompt!r} and {response!r}. Encode the "
            "text: model.encode(...)."
        )
    before, behind = (torch.as_tensor(part).cpu().long() for part in (prompt, response))
    return Item.read(torch.cat([before, behind]), context=range(len(before)))


def _padded(parts: Sequence[Tensor], width: int, filling: int = 0) -> Tensor:
    """Rows of unequal lengths in one tensor."""
    found = torch.full((len(parts), width), filling, dtype=parts[0].dtype)
    for row, part in zip(found, parts, strict=True):
        row[: len(part)] = part
    return found


def _widened(rows: Tensor, width: int) -> Tensor:
    return torch.nn.functional.pad(rows, (0, width - rows.shape[1]))


def _roles(item: Item) -> Int[Tensor, " length"]:
    roles = torch.full((item.length,), NEITHER)
    roles[item.context], roles[item.target] = CONTEXT, TARGET
    return roles


def _restored(state: dict[str, Tensor], settings: PlanSettings) -> MaskPlan:
    """The plan whose `_state` this was."""
    items = []
    for tokens, roles in zip(state["tokens"], state["role"], strict=True):
        kept = roles != PADDING
        target, context = ((roles == role).nonzero().squeeze(1) for role in (TARGET, CONTEXT))
        items.append(Item.read(tokens[kept], target=target, context=context))
    return MaskPlan(tuple(items), state["sequence"], state["replicate"], state["masked"], state["weight"], settings)
