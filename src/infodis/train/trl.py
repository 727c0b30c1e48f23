"""TRL's trainers on diffusion models: DPO, KTO, GRPO and RLOO, with log-likelihoods that `infodis.draw_plan` plans.

    policy, reference = infodis.load("text8-tiny", trainable=True), infodis.load("text8-tiny")
    trainer = trl.DPOTrainer(as_pretrained(policy), as_pretrained(reference), ...)
    use_plans(trainer, evaluations=4)
    trainer.train()

All four ask a model for the log-probabilities of a batch by one forward with labels, which reads a row from left to
right. `use_plans` puts another one in its place: what each token adds to the estimate of log p [eq:plan]. Masks of a
row are named by its content, the seed and the step, so policy and reference, old and new policy meet the same ones.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformers import GenerationConfig, PretrainedConfig, PreTrainedModel
from trl.trainer.utils import FusedCausalLMOutput

from infodis.design import MaskDesign
from infodis.errors import InputError
from infodis.gradients import log_likelihood
from infodis.item import Item
from infodis.models.model import Model
from infodis.plan import draw_plan
from infodis.reveal import RandomOrder, RevealRule
from infodis.rng import key
from infodis.sampling import sample
from infodis.train.preferences import VALIDATION

NOT_SCORED = -100
"""The label of a token that is no part of a response."""


class PretrainedShell(PreTrainedModel):
    """A model in the clothes that trainers of transformers expect. Its network is that of the model, not a copy."""

    config_class = PretrainedConfig
    supports_gradient_checkpointing = True

    def __init__(self, model: Model) -> None:
        super().__init__(PretrainedConfig())
        self.generation_config = GenerationConfig()
        self.network, self.predictor = model.network, model

    def forward(self, input_ids: Tensor, **_: Any) -> None:
        raise InputError("A diffusion model has no logits from left to right. Call use_plans(trainer) before training.")

    def gradient_checkpointing_enable(self, *_: Any, **__: Any) -> None:
        """Nothing to do: `log_likelihood` runs every micro-batch again in the backward pass."""

    def gradient_checkpointing_disable(self) -> None:
        """Nothing to do."""


def as_pretrained(model: Model) -> PretrainedShell:
    """A model of infodis for trainers of TRL: `infodis.load(..., trainable=True)`, or one in memory.

    Training moves the weights of the model that is given.
    """
    return PretrainedShell(model)


def use_plans(
    trainer: Any,
    *,
    evaluations: int = 4,
    design: MaskDesign | None = None,
    seed: int = 0,
    micro_batch: int = 16,
    rule: RevealRule = RandomOrder(),
) -> None:
    """Let a trainer of TRL compute log-likelihoods on plans, of its model and of its reference; and write by a rule.

    What trainers log about logits (`entropy`, `logits/chosen`, `mean_token_accuracy`) is then not measured: NaN or 0.

    Args:
        trainer: a DPOTrainer, KTOTrainer, GRPOTrainer or RLOOTrainer, whose model and reference are made by
            `as_pretrained`, with or without PEFT. GRPO needs `importance_sampling_level="sequence"`.
        evaluations, design, seed: as for `infodis.draw_plan`, whose default design is taken unless one is given. Masks
            are new in every step, in GRPO and RLOO with every generation, and the same in all evaluations.
        micro_batch: rows per forward pass.
        rule: how GRPO and RLOO write responses, of `max_completion_length` tokens: see `infodis.sampling.sample`.
    """
    _check_arguments(trainer.args)
    plan = {"evaluations": evaluations, "seed": seed} | ({} if design is None else {"design": design})
    for network in (trainer.model, trainer.ref_model):
        if network is not None:
            shell = _shell(trainer.accelerator.unwrap_model(network))
            planned = _Planned(trainer, shell.predictor, plan, micro_batch, rule)
            shell.forward = planned.forward  # type: ignore[method-assign]  # where TRL has put its own
            shell.generate = planned.generate  # type: ignore[assignment]


def _check_arguments(args: Any) -> None:
    if getattr(args, "precompute_ref_log_probs", False):
        raise InputError(
            "Policy and reference must be evaluated on the same masks, got precompute_ref_log_probs=True: those were "
            "computed before, and from left to right. Leave it out."
        )
    if getattr(args, "importance_sampling_level", "sequence") != "sequence":
        raise InputError(
            "A likelihood of a diffusion model belongs to the sequence, ratios of single tokens mean nothing; got "
            f'importance_sampling_level={args.importance_sampling_level!r}. Set it to "sequence".'
        )
    if getattr(args, "temperature", 1.0) != 1.0:
        raise InputError(f"Log-likelihoods are those at a temperature of 1, got {args.temperature}. Set it to 1.0.")


def _shell(network: Any) -> PretrainedShell:
    found = network.get_base_model() if callable(getattr(network, "get_base_model", None)) else network
    if not isinstance(found, PretrainedShell):
        raise InputError(
            f"A trainer's model and reference must be made by as_pretrained(infodis.load(...)), got a "
            f"{type(found).__name__}. Give the trainer both; without ref_model it looks for one by its name."
        )
    return found


@dataclasses.dataclass(frozen=True, eq=False)
class _Planned:
    """What takes the place of a forward with labels, and of generation from left to right."""

    trainer: Any
    model: Model
    plan: Mapping[str, Any]
    """What `draw_plan` is called with."""
    micro_batch: int
    rule: RevealRule

    def forward(
        self,
        input_ids: Int[Tensor, "rows length"],
        attention_mask: Int[Tensor, "rows length"] | None = None,
        labels: Int[Tensor, "rows length"] | None = None,
        fused_lm_head: bool = False,
        **_: Any,
    ) -> FusedCausalLMOutput:
        if labels is None or not fused_lm_head:
            raise InputError(
                "A trainer must ask for log-probabilities by a forward with labels and fused_lm_head=True, as those of "
                "TRL 1.16 do; this one did not. Install a version that `pip install 'infodis[trl]'` chooses."
            )
        there = torch.ones_like(input_ids).bool() if attention_mask is None else attention_mask.bool()
        with self.trainer.accelerator.autocast():
            found = self._log_probs(input_ids, there, labels != NOT_SCORED)
        unknown = torch.full_like(found, torch.nan)
        return FusedCausalLMOutput(
            loss=-found.sum() / len(found),
            log_probs=found,
            entropy=unknown,
            mean_logits=unknown,
            is_top1=torch.zeros_like(found, dtype=torch.bool),
            label_mask=labels[:, 1:] != NOT_SCORED,
        )

    def generate(
        self, input_ids: Int[Tensor, "rows prompt"], attention_mask: Tensor, generation_config: Any, **_: Any
    ) -> Int[Tensor, "rows length"]:
        """Prompts, which are padded on the left, with responses behind them. Prompts of one length share batches."""
        place = (self.trainer.accelerator.process_index, _step(self.trainer), self.trainer.state.global_step)
        more = torch.full((len(input_ids), generation_config.max_new_tokens), self.model.mask_token)
        lengths = attention_mask.sum(1).cpu()
        for length in lengths.unique().tolist():
            alike = lengths == length
            rows = torch.cat([input_ids.cpu()[alike, input_ids.shape[1] - length :], more[alike]], dim=1)
            written = sample(self.model, rows, rule=self.rule, seed=key(self.plan["seed"], "responses", *place, length))
            more[alike] = written[:, length:]
        return torch.cat([input_ids, more.to(input_ids.device)], dim=1)

    def _log_probs(
        self, tokens: Tensor, there: Bool[Tensor, "rows length"], scored: Bool[Tensor, "rows length"]
    ) -> Float[Tensor, "rows length-1"]:
        """What every token adds, at the places where TRL wants them: one to the left."""
        if bool(scored[:, 0].any()):
            raise InputError("TRL drops the first token of a row, so a response needs a prompt of one token or more.")
        items = [_read(*row) for row in zip(tokens.cpu(), there.cpu(), scored.cpu(), strict=True)]
        plan = draw_plan(self.model, items, step=_step(self.trainer), **self.plan)
        each = log_likelihood(self.model, plan, micro_batch=self.micro_batch, per_token=True)
        inside = torch.arange(plan.width) < plan.lengths.unsqueeze(1)
        empty = torch.zeros(there.shape, dtype=each.dtype, device=each.device)
        return empty.index_put((there.to(each.device),), each[inside.to(each.device)])[:, 1:].float()


def _read(tokens: Tensor, there: Tensor, scored: Tensor) -> Item:
    """A padded row: its response is the target, given all else but padding."""
    target = scored[there]
    return Item.read(tokens[there], target=target.nonzero().squeeze(1), context=(~target).nonzero().squeeze(1))


def _step(trainer: Any) -> int:
    """What names masks. Trainers that generate use a batch for several steps, and compare with when it was written."""
    if not trainer.model.training:
        return VALIDATION
    if hasattr(trainer.args, "steps_per_generation"):
        return int(trainer._step // (trainer.args.steps_per_generation * trainer.num_iterations))
    return int(trainer.state.global_step)
