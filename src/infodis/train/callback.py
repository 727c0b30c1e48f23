"""A callback for transformers' Trainer: the validation likelihood, with its error, every so many steps."""

import math
from typing import Any

import transformers

from infodis.errors import InputError
from infodis.item import Tokens
from infodis.train.records import Validation
from infodis.train.validation import validation_nll


class ValidationCallback(transformers.TrainerCallback):
    """Measures the negative ELBO of some texts while a `transformers.Trainer` runs.

        callback = ValidationCallback(valid_texts, tokenizer=tokenizer, every=500)
        Trainer(model=model, ..., callbacks=[callback]).train()
        callback.history                                     # bits per token with their errors, by step

    Masks are the same every time, so that differences are the model's. The model is evaluated in evaluation mode and
    left as it was; no random numbers of the training are used. Numbers also go to `trainer.state.log_history`, as
    `validation_bits_per_token` and `validation_standard_error`.
    """

    def __init__(
        self,
        texts: Tokens,
        *,
        tokenizer: Any = None,
        mask_token: int | None = None,
        every: int = 500,
        evaluations: int = 32,
    ) -> None:
        if every < 1:
            raise InputError(f"every must be at least 1 step, got {every}.")
        self.texts: Tokens = texts
        self.options: dict[str, Any] = {"tokenizer": tokenizer, "mask_token": mask_token, "evaluations": evaluations}
        self.every = every
        self.history: list[Validation] = []

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """After a step of the optimizer."""
        if state.global_step % self.every or not state.is_world_process_zero:
            return
        found = validation_nll(kwargs["model"], self.texts, **self.options)
        bits, error = (number / math.log(2) for number in (found.value, found.standard_error))
        best = all(bits < earlier.bits_per_token for earlier in self.history)
        self.history.append(Validation(state.global_step, "nll", bits, error, best))
        logged = {"validation_bits_per_token": bits, "validation_standard_error": error, "step": state.global_step}
        state.log_history.append(logged)
