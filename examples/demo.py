"""Score a few DNA sequences with a model whose likelihoods are known exactly, and look at the error bars.

The model is the paper's order-4 Markov chain. To make it behave like a learned network, noise is put on its conditional
distributions, so that they no longer agree with each other perfectly.
"""

import html
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

import infodis
from infodis.bench.problems import Perturbed
from infodis.oracle import MarkovChain
from infodis.rng import stream

LETTERS = "ATGC"
OUT = Path("out/demo")


def main() -> None:
    chain = MarkovChain.random(order=4, vocab_size=4, temperature=0.3, seed=0)
    model = Perturbed(chain, scale=0.2)
    prompt, likely = chain.sample(1, length=40, generator=stream(0, "demo"))[0].split([16, 24])
    shuffled = likely[torch.randperm(24, generator=stream(2, "shuffle"))]
    uniform = torch.randint(4, (24,), generator=stream(3, "uniform"))
    rows = {"drawn from the chain": likely, "the same, shuffled": shuffled, "random letters": uniform}

    texts = [torch.cat([prompt, response]) for response in rows.values()]
    estimates = infodis.nll(model, texts, context=range(16), evaluations=128)
    exact = [-chain.log_prob(text, context=range(16)) for text in texts]
    assert isinstance(estimates, list)

    title = "-log p(response | prompt) in nats, 128 forward rows each"
    table = Table("response", "nll", "95 % interval", "bits per letter", "exact, without noise", title=title)
    for name, estimate, truth in zip(rows, estimates, exact, strict=True):
        low, high = estimate.interval()
        value = f"{estimate.value:.2f} ± {estimate.standard_error:.2f}"
        table.add_row(name, value, f"{low:.2f} .. {high:.2f}", f"{estimate.bits_per_token:.3f}", f"{truth:.2f}")
    console = Console()
    console.print(table)
    ratio = infodis.log_ratio(model, texts[0], texts[1], context=range(16))
    assert isinstance(ratio, infodis.ratio.Ratio)
    console.print(
        f"The first is [bold]{ratio.value:.2f} ± {ratio.standard_error:.2f}[/bold] nats likelier than the second "
        "(same masks for both)."
    )
    OUT.mkdir(parents=True, exist_ok=True)
    report = OUT / "report.html"
    report.write_text(_report(list(rows.items()), estimates))
    console.print(f"Which letters cost how much: open {report}")


def _spell(tokens: torch.Tensor) -> str:
    return "".join(LETTERS[t] for t in tokens.tolist())


def _report(rows: list[tuple[str, torch.Tensor]], estimates: list[infodis.Estimate]) -> str:
    """One self-contained page: every letter coloured by its credit, its nats on hover."""
    body = []
    for (name, response), estimate in zip(rows, estimates, strict=True):
        letters = "".join(
            f'<span style="background:rgba(224,122,95,{max(0, nats / 3):.2f})" title="{nats:.2f} nats">{a}</span>'
            for a, nats in zip(_spell(response), estimate.per_token.tolist(), strict=True)
        )
        value = f"{estimate.value:.2f} ± {estimate.standard_error:.2f} nats"
        body.append(f"<h2>{html.escape(name)}</h2><p class=dna>{letters}</p><p>{value}</p>")
    style = (
        "body{font:16px/1.5 system-ui;max-width:46rem;margin:2rem auto;padding:0 1rem;color-scheme:light dark}"
        ".dna{font:1.6rem monospace;letter-spacing:.15em;overflow-wrap:anywhere}"
    )
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>infodis demo</title><style>{style}</style><h1>How surprising is each letter?</h1>"
        "<p>Credits are order-free and add up to the sequence's nll. Point at a letter for its nats.</p>"
        f"{''.join(body)}</html>\n"
    )


if __name__ == "__main__":
    main()
