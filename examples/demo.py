"""Score a few sentences with the character model that ships with infodis, and look at the error bars."""

import html
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text

import infodis
from infodis.model import Model
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
    assert isinstance(estimates, list)

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
    ratio = infodis.log_ratio(model, tokens[0], tokens[2])
    assert isinstance(ratio, infodis.ratio.Ratio)
    console.print(
        f"The first is [bold]{ratio.value:.1f} ± {ratio.standard_error:.1f}[/bold] nats likelier than itself shuffled "
        "(same masks for both)."
    )
    OUT.mkdir(parents=True, exist_ok=True)
    report = OUT / "report.html"
    report.write_text(_report(model, texts, estimates), encoding="utf-8")
    console.print(f"The same as a page to open: {report}")


def _share(nats: float) -> float:
    """How red a character is."""
    return min(1.0, max(0.0, nats / 5))


def _heat(text: str, estimate: infodis.Estimate) -> Text:
    line = Text("  ")
    for character, nats in zip(text, estimate.per_token.tolist(), strict=True):
        rest = round(255 * (1 - _share(nats)))
        line.append(character, style=f"black on rgb(255,{rest},{rest})")
    return line


def _report(model: Model, texts: dict[str, str], estimates: list[infodis.Estimate]) -> str:
    """One self-contained page: every character coloured by its credit, its nats on hover."""
    body = []
    for (name, text), estimate in zip(texts.items(), estimates, strict=True):
        characters = "".join(
            f'<span style="background:rgba(224,80,60,{_share(nats):.2f})" title="{nats:.2f} nats">{a}</span>'
            for a, nats in zip(map(html.escape, text), estimate.per_token.tolist(), strict=True)
        )
        value = f"{estimate.value:.1f} ± {estimate.standard_error:.1f} nats"
        value += f", {estimate.bits_per_token:.2f} bits per character"
        body.append(f"<h2>{html.escape(name)}</h2><p class=text>{characters}</p><p>{value}</p>")
    style = (
        "body{font:16px/1.5 system-ui;max-width:46rem;margin:2rem auto;padding:0 1rem;color-scheme:light dark}"
        ".text{font:1.2rem/1.8 monospace;white-space:pre-wrap;overflow-wrap:anywhere}footer{opacity:.7;font-size:.8rem}"
    )
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>infodis demo</title><style>{style}</style><h1>How surprising is each character?</h1>"
        "<p>Credits are order-free and add up to the sentence's nll. Point at a character for its nats.</p>"
        f"{''.join(body)}<footer>{html.escape(model.name)}, weights {model.fingerprint}, 128 forward rows a sentence, "
        f"seed 0, infodis {infodis.__version__}</footer></html>\n"
    )


if __name__ == "__main__":
    main()
