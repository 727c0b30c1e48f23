"""How a step moves the weights: AdamW, or Muon for the matrices inside blocks; and its learning rate."""

import math

import torch
from torch import nn

from infodis.errors import InputError
from infodis.train.config import OptimConfig

REMEMBERED = {"AdamW": ("step", "exp_avg", "exp_avg_sq"), "Muon": ("momentum_buffer",)}
"""What an optimizer knows about a parameter."""


def make_optimizers(network: nn.Module, optim: OptimConfig) -> list[torch.optim.Optimizer]:
    """AdamW, where only matrices decay; or Muon for the matrices inside blocks, and AdamW for everything else."""
    named = dict(network.named_parameters())
    matrices = [name for name, p in named.items() if name.startswith("blocks.") and p.ndim == 2]
    inner = [named.pop(name) for name in matrices] if optim.optimizer == "muon" else []
    groups = [
        {"params": [p for p in named.values() if p.ndim >= 2], "weight_decay": optim.weight_decay},
        {"params": [p for p in named.values() if p.ndim < 2], "weight_decay": 0.0},
    ]
    adamw = torch.optim.AdamW(groups, lr=optim.learning_rate, betas=(optim.beta1, optim.beta2), fused=True)
    return [adamw, _muon(inner, optim)] if inner else [adamw]


def _muon(matrices: list[nn.Parameter], optim: OptimConfig) -> torch.optim.Optimizer:
    """Updates are scaled to be as large as AdamW's, so that both share a learning rate."""
    kind = getattr(torch.optim, "Muon", None)
    if kind is None:
        raise InputError(
            f'optim.optimizer = "muon" needs torch 2.9 or newer, got {torch.__version__}. Upgrade it, or use "adamw".'
        )
    return kind(matrices, lr=optim.learning_rate, weight_decay=optim.weight_decay, adjust_lr_fn="match_rms_adamw")


def learning_rate(optim: OptimConfig, step: int) -> float:
    """Linear warm-up, then a cosine down to the final rate."""
    if step <= optim.warmup:
        return optim.learning_rate * step / optim.warmup
    done = (step - optim.warmup) / max(1, optim.steps - optim.warmup)
    share = optim.final_rate + (1 - optim.final_rate) * (1 + math.cos(math.pi * done)) / 2
    return optim.learning_rate * share
