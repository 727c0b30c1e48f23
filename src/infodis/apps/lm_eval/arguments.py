"""What `--model_args` may hold, checked."""

import dataclasses
import difflib
from typing import Any

from infodis.auto import design_named
from infodis.errors import InputError
from infodis.estimate import DEFAULT_EVALUATIONS, Request
from infodis.quantities.choose import Race
from infodis.reveal import RevealRule
from infodis.rng import check_seed
from infodis.sampling import sampler_named
from infodis.settings import settings_of, uncompared, versions

METRICS = ("acc", "acc_norm", "acc_bytes")
"""What a race can be about: the likeliest continuation; per character; per byte."""

GREEDY = ("auto", "always", "never")


@dataclasses.dataclass(frozen=True)
class ModelArgs:
    """How requests are answered. Equal arguments of equal models give equal responses."""

    evaluations: int | None = None
    """Forward passes per request: 128. With a standard error the most, 4,096."""
    standard_error: float | None = None
    """Spend on each request what this standard error takes, in nats."""
    design: str = "auto"
    seed: int = 0
    race: bool | str = False
    """Multiple choice as a race: True for `acc`, or the metric that it decides."""
    alpha: float = 0.01
    """How often a race may decide on a wrong choice."""
    greedy: str = dataclasses.field(default="auto", metadata=uncompared("a flag has a key of its own"))
    """When to find out whether a continuation is what greedy decoding gives. `auto`: where a document has only one."""
    max_length: int | None = None
    """Tokens of the longest row. Unless given: what the model takes, or else what it was trained with."""
    add_bos_token: bool = False
    """Put the model's begin token before every context, not only where there is none."""
    stride: int | None = None
    """Tokens scored per window of a long text, given the rest of it. Unless given: all, given nothing."""
    sampler: str = "most-confident"
    steps: int | None = None
    """Forward passes for an answer. Unless given, one for every token."""
    max_gen_toks: int = 256
    """Tokens of an answer, where the task does not say."""
    batch_size: int | None = dataclasses.field(default=None, metadata=uncompared("it changes rounding only"))
    """At most so many rows per forward pass."""

    def __post_init__(self) -> None:
        if self.race not in (False, True, *METRICS):
            raise InputError(f"race is true, false or one of {', '.join(METRICS)}; got {self.race!r}.")
        if self.race and self.standard_error is not None:
            raise InputError("A race spends what a decision takes, not what a standard error takes. Leave one out.")
        if self.greedy not in GREEDY:
            raise InputError(f"greedy is one of {', '.join(GREEDY)}; got {self.greedy!r}.")
        for name in ("max_length", "stride", "steps", "max_gen_toks"):
            number = getattr(self, name)
            if number is not None and (type(number) is not int or number < 1):
                raise InputError(f"{name} must be a whole number and at least 1, got {number!r}.")
        check_seed(self.seed)
        self.request()
        self.running()
        self.rule(self.max_gen_toks)

    @staticmethod
    def read(given: dict[str, Any]) -> "ModelArgs":
        """From the harness's own words."""
        known = [field.name for field in dataclasses.fields(ModelArgs)]
        for name in given:
            if name not in known:
                close = difflib.get_close_matches(name, known, n=1)
                hint = f" Did you mean {close[0]}?" if close else ""
                raise InputError(f"There is no model argument {name}.{hint} There are {', '.join(known)}.")
        return ModelArgs(**{**given, "batch_size": _batch_size(given.get("batch_size"))})

    def request(self) -> Request:
        """How a likelihood is estimated."""
        return Request(
            design_named(self.design),
            evaluations=self.evaluations,
            standard_error=self.standard_error,
            batch_size=self.batch_size,
        )

    def running(self) -> Race:
        """How a race is run."""
        rows = DEFAULT_EVALUATIONS if self.evaluations is None else self.evaluations
        race = Race(alpha=self.alpha, evaluations=rows)
        return race if self.design == "auto" else dataclasses.replace(race, design=design_named(self.design))

    @property
    def raced(self) -> str | None:
        """The metric that races are about, if there are any."""
        return "acc" if self.race is True else self.race or None

    def rule(self, tokens: int) -> RevealRule:
        """By what rule an answer of so many tokens is filled in; by a model of blocks, in each of them."""
        return sampler_named(self.sampler, steps=self.steps, tokens=tokens)

    def settings(self) -> dict[str, Any]:
        """Everything here that a response depends on."""
        return {**versions(), **settings_of(self)}


def _batch_size(given: Any) -> int | None:
    """Rows per forward pass; None where the harness only says its default of 1, or `auto`."""
    if given is None or (isinstance(given, str) and given.startswith("auto")):
        return None
    try:
        number = int(given)
    except (TypeError, ValueError):
        raise InputError(f"batch_size must be a whole number or auto, got {given!r}.") from None
    return None if number == 1 else number
