"""Score a few sentences with the character model that ships with infodis, and look at the error bars."""

from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text

import infodis
from infodis.apps.report.page import write
from infodis.apps.report.scores import score_report
from infodis.models.model import Model
from infodis.rng import stream

SENTENCES = {
    "plausible": "the river flows through the north of the country and into the sea near the old city",
    "unlikely": "a purple vacuum quietly yodels at eight jagged waxworks while my zebu fixes the quartz",
}
OUT = Path("out/demo")


def main() -> None:
    model = infodis.load("text8-tiny")
    plausible = SENTENCES["plausible"]
    order = torch.randperm(len(plausible), generator=stream(0, "demo")).tolist()
    texts = {**SENTENCES, "the first, shuffled": "".join(plausible[place] for place in order)}
    tokens = [model.encode(text) for text in texts.values()]
    estimates = infodis.nll(model, tokens, evaluations=128)

    console = Console()
    title = f"-log p(sentence) under {model.name}, 128 forward rows each"
    table = Table("sentence", "nll in nats", "95 % interval", "bits per character", title=title)
    for name, estimate in zip(texts, estimates, strict=True):
        low, high = estimate.interval()
        value = f"{estimate.value:.1f} ± {estimate.standard_error:.1f}"
        table.add_row(name, value, f"{low:.1f} .. {high:.1f}", f"{estimate.bits_per_token:.3f}")
    console.print(table)
    console.print("What each character costs, from nothing (plain) to 5 nats (red):")
    for text, estimate in zip(texts.values(), estimates, strict=True):
        console.print(_heat(text, estimate))
    ratio = infodis.log_ratio(model, plausible, texts["the first, shuffled"])
    console.print(
        f"The first is [bold]{ratio.value:.1f} ± {ratio.standard_error:.1f}[/bold] nats likelier than itself shuffled "
        "(same masks for both)."
    )
    records = [_record(*one) for one in zip(texts, [model] * len(tokens), tokens, estimates, strict=True)]
    about = {"model": model.name, "weights": model.fingerprint, "forward rows a sentence": 128, "seed": 0}
    report = score_report(records, title="How surprising is each character?", provenance=about)
    write(report, OUT / "report.html")
    console.print(f"The same as a page to open: {OUT / 'report.html'}")


def _share(nats: float) -> float:
    """How red a character is."""
    return min(1.0, max(0.0, nats / 5))


def _heat(text: str, estimate: infodis.Estimate) -> Text:
    line = Text("  ")
    for character, nats in zip(text, estimate.per_token.tolist(), strict=True):
        rest = round(255 * (1 - _share(nats)))
        line.append(character, style=f"black on rgb(255,{rest},{rest})")
    return line


def _record(name: str, model: Model, tokens: torch.Tensor, estimate: infodis.Estimate) -> dict[str, Any]:
    """As `infodis score --per-token` writes it."""
    return {
        "id": name,
        "value": estimate.value,
        "standard_error": estimate.standard_error,
        "tokens": len(tokens),
        "bits_per_token": estimate.bits_per_token,
        "pieces": model.tokenizer.pieces(tokens.tolist()),
        "per_token": estimate.per_token.tolist(),
        "per_token_error": estimate.per_token_error.tolist(),
    }


if __name__ == "__main__":
    main()
