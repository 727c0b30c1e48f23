"""Models of noise as people have them: against their own networks and losses, recorded; and every way to ask them."""

import json
import math
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

import infodis
from infodis.cli import app
from infodis.errors import InputError
from infodis.models import checkpoint
from infodis.models.doctor import ModelUnderTest, doctor
from infodis.models.doctor.noise_checks import data_and_noise, noised_context, score_entropies
from infodis.models.nets import SEDD, NetworkShape
from infodis.models.tokenizers import tokenizer_named
from infodis.noise.design import Noise
from infodis.noise.dse import dse_nll
from infodis.noise.process import Hybrid, Uniform
from infodis.noise.schedule import LogLinear
from infodis.noise.scores import NoisyOracle, ScorePredictor, from_mean
from infodis.oracle import MarkovChain
from infodis.rng import stream, uniforms
from infodis.train.validation import validation_nll

REFERENCES = Path(__file__).parents[1] / "references"
NOISY = ("sedd-uniform", "udlm", "duo", "gidd")
END = float(LogLinear().total(torch.tensor(1.0).double()))


def totals_of(name, answer):
    """The total noise of a recorded row."""
    if name == "sedd-uniform":
        return answer["sigma"].double()
    time = answer["time"].double()
    if name == "gidd":
        weight = 0.5 * (time * (1 - time)).sqrt()
        return -((1 - time) / (1 + weight)).log()
    return -torch.log1p(-(1 - 1e-3) * time)


@pytest.mark.parametrize("name", NOISY)
@torch.no_grad()
def test_networks_against_the_public_ones(name):
    model, answer = infodis.load(REFERENCES / name), load_file(REFERENCES / name / "answer.safetensors")
    tokens, totals, network = answer["tokens"], totals_of(name, answer), model.network
    features = network.noised_features(tokens, totals.float())
    if name == "sedd-uniform":
        found = network.log_scores(features.flatten(0, 1), tokens.flatten(), totals.repeat_interleave(tokens.shape[1]))
        found = found.view(answer["output"].shape).scatter(-1, tokens.unsqueeze(-1), 0.0)
        expected = answer["output"]
    else:
        found = network.log_mean(features.flatten(0, 1)).view(*tokens.shape, -1)
        expected = answer["output"][..., : network.vocab_size].log_softmax(-1)
    assert torch.allclose(found, expected, atol=1e-4)


@pytest.mark.parametrize("name", ["duo", "gidd"])
@torch.no_grad()
def test_entropies_against_the_public_losses(name):
    """Per unit of time, as they have it: the slope of the total noise times our score entropy, token by token."""
    model, answer = infodis.load(REFERENCES / name), load_file(REFERENCES / name / "answer.safetensors")
    tokens, totals, time = answer["tokens"], totals_of(name, answer), answer["time"].double()
    step = 1e-6
    slope = (totals_of(name, {"time": time + step}) - totals_of(name, {"time": time - step})) / (2 * step)
    rows = infodis.predictor.NoisedRows(
        answer["clean"], tokens, torch.ones_like(tokens, dtype=torch.bool), torch.full((3,), tokens.shape[1]), totals
    )
    found = model.entropies(rows).view(tokens.shape) * slope.unsqueeze(-1)
    assert torch.allclose(found, answer["loss"].double(), rtol=1e-3, atol=1e-4)


@torch.no_grad()
def test_mdlm_told_the_time_against_the_public_network():
    model = infodis.load(REFERENCES / "mdlm-time")
    answer = load_file(REFERENCES / "mdlm-time" / "answer.safetensors")
    masked = answer["tokens"] == 40
    expected = answer["output"][..., :40].log_softmax(-1)
    found = model.log_conditionals(answer["tokens"])[..., :40]
    assert torch.allclose(found[masked], expected[masked], atol=1e-4)
    plain = infodis.load(REFERENCES / "mdlm")
    assert type(plain.network).__name__ == "MDLM"
    assert infodis.score(model, [[1, 2, 3, 4]])[0].quantity == "nll"


@torch.no_grad()
def test_padding_changes_nothing():
    model = infodis.load(REFERENCES / "gidd")
    short = infodis.score(model, [[1, 2, 3, 4, 5]], seed=1)[0].value
    both = infodis.score(model, [[1, 2, 3, 4, 5], [6, 7, 8, 9, 1, 2, 3, 4, 5]], seed=1)
    assert both[0].value == pytest.approx(short, abs=1e-3)


@pytest.mark.parametrize("name", NOISY)
def test_estimates_against_the_projects_own_integral(name):
    """Their estimator: times drawn uniformly from their schedule, noise drawn by time, its rate times the entropy.

    4,000 rows on either side; z within 4.
    """
    model, tokens = infodis.load(REFERENCES / name), torch.tensor([3, 7, 1, 5])
    process, network = model.noise.process, model.network
    ours = infodis.score(model, [tokens], evaluations=4000, seed=2)[0]
    generator = stream(5)
    u = (torch.arange(4000) + uniforms(4000, generator=generator)) / 4000
    last = -math.expm1(-model.noise.end)
    totals = -torch.log1p(-last * u)  # a log-linear schedule to where ours ends
    rows = process.noise(tokens.expand(4000, -1), totals, generator=generator)
    batch = infodis.predictor.NoisedRows(
        tokens.expand(4000, -1), rows, torch.ones(4000, 4, dtype=torch.bool), torch.full((4000,), 4), totals
    )
    terms = model.entropies(batch).view(4000, 4).sum(1) * last * torch.exp(totals)
    groups = terms.view(-1, 2).mean(1)  # neighbours in time: an error that is a little too large
    theirs = float(terms.mean()) + float(model.noise.end_terms(tokens[None]).sum())
    error = math.hypot(ours.standard_error, float(groups.std()) / math.sqrt(len(groups)))
    assert abs(ours.value - theirs) < 4 * error
    assert isinstance(network, SEDD)
    assert ours.quantity == "dse_nll"


def test_the_mean_parametrisation_against_exact():
    chain, tokens = MarkovChain.random(order=1, vocab_size=3, temperature=0.2), [2, 0, 1]
    for process in (Uniform(3), Hybrid(3, share=0.3)):
        exact = NoisyOracle(chain, process)

        def mean(noised, total, where, exact=exact, process=process):
            """What the other tokens say: the posterior without the evidence of the token itself."""
            return (exact.log_denoised(noised, total, where) - process.likelihood(noised, total).log()).log_softmax(-1)

        found = dse_nll(from_mean(mean, process), tokens, process=process, evaluations=10**6)
        assert found.value == pytest.approx(-chain.log_prob(tokens), abs=1e-6)


@pytest.fixture
def directory(tmp_path):
    """A small SEDD of uniform noise in our own layout, with random weights and text8's letters."""
    words = tokenizer_named("text8")
    shape = NetworkShape(width=16, blocks=1, heads=2, condition=8)
    spec = checkpoint.Spec("sedd", 27, shape, 24, noise="uniform", scaled=False, tokenizer=words)
    network = spec.build()
    with torch.no_grad():
        for number, parameter in enumerate(network.parameters()):
            parameter.copy_(0.3 * uniforms(*parameter.shape, generator=stream(number)) - 0.15)
    made = tmp_path / "model"
    made.mkdir()
    checkpoint.save(made, spec, network.state_dict())
    return made


def test_every_way_to_ask(directory, tmp_path):
    model = infodis.load(directory)
    assert model.noise == Noise(Uniform(27), END)
    assert "Uniform noise" in repr(model)
    texts = ["the cat sat", "a dog", "on the mat"]
    scores = infodis.score(model, texts, evaluations=32)
    assert {one.quantity for one in scores} == {"dse_nll"}
    assert [abs(sum(one.per_token) - one.value) < 1e-9 for one in scores] == [True] * 3
    assert infodis.perplexity(model, texts, evaluations=16).tokens == sum(map(len, texts))
    ratio = infodis.log_ratio(model, "the cat", "teh cat", evaluations=32)
    assert ratio.standard_error < math.hypot(*(side.standard_error for side in ratio.sides))
    rows, out = tmp_path / "rows.jsonl", tmp_path / "out.jsonl"
    rows.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    command = ["score", str(rows), "--model", str(directory), "--evaluations", "32", "--per-token", "--out", str(out)]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    records = [json.loads(line) for line in out.read_text().splitlines()]
    assert [one["quantity"] for one in records] == ["dse_nll"] * 3
    assert [one["value"] for one in records] == pytest.approx([one.value for one in scores], abs=1e-4)
    pairs = tmp_path / "pairs.jsonl"
    pairs.write_text(json.dumps({"prompt": "the ", "chosen": "cat", "rejected": "cta"}) + "\n")
    done = CliRunner().invoke(
        app, ["ratio", str(pairs), "-m", str(directory), "--evaluations", "32", "-o", str(tmp_path / "ratios.jsonl")]
    )
    assert done.exit_code == 0, done.output
    novel = tmp_path / "novel.txt"
    novel.write_text("the cat sat on the mat and looked at the dog\n")
    done = CliRunner().invoke(app, ["perplexity", str(novel), "-m", str(directory), "--evaluations", "16"])
    assert done.exit_code == 0, done.output


def test_what_needs_masks_says_so(directory, tmp_path):
    model = infodis.load(directory)
    for ask in (
        lambda: infodis.nll(model, "a text"),
        lambda: infodis.order_nll(model, "a text"),
        lambda: infodis.score(model, "a text", quantity="pll"),
        lambda: infodis.bounds(model, "a text"),
    ):
        with pytest.raises(InputError, match="knows noise on tokens"):
            ask()
    with pytest.raises(InputError, match="predicts masked tokens"):
        infodis.score("text8-tiny", "a text", quantity="dse_nll")
    wrong = tmp_path / "gidd"
    shutil.copytree(REFERENCES / "gidd", wrong)
    config = json.loads((wrong / "config.json").read_text())
    (wrong / "config.json").write_text(json.dumps({**config, "p_uniform": 2}))
    with pytest.raises(InputError, match="p_uniform"):
        infodis.load(wrong)
    shutil.copytree(REFERENCES / "udlm", tmp_path / "udlm")
    (tmp_path / "udlm" / "config.json").write_text(
        json.dumps(json.loads((REFERENCES / "udlm" / "config.json").read_text()) | {"cfg": True})
    )
    with pytest.raises(InputError, match="guidance"):
        infodis.load(tmp_path / "udlm")


@pytest.mark.parametrize("command", ["choose", "pairs", "variants", "audit", "bounds", "curve"])
def test_commands_that_need_masks_say_so_once(directory, tmp_path, command):
    """Not row by row, and before any result is written."""
    rows, wild = tmp_path / "rows.jsonl", tmp_path / "wild.fasta"
    fields = {"text": "the", "prompt": "", "choices": ["a", "b"], "good": "a cat", "bad": "a cta", "mutant": "T1A"}
    rows.write_text(json.dumps(fields) + "\n")
    wild.write_text(">wild\nTHE\n")
    inputs = {"variants": [str(wild), str(rows)], "audit": [str(rows), str(rows)]}.get(command, [str(rows)])
    out = tmp_path / ("out" if command == "audit" else "out.jsonl")
    done = CliRunner().invoke(app, [command, *inputs, "-m", str(directory), "--out", str(out)])
    assert isinstance(done.exception, InputError), done.output
    assert "knows noise on tokens" in str(done.exception)


def test_credits_of_tokens_with_a_prompt_or_without(directory, tmp_path):
    rows, out = tmp_path / "rows.jsonl", tmp_path / "credits.jsonl"
    rows.write_text('{"text": "the cat"}\n{"prompt": "the cat ", "text": "sat"}\n')
    done = CliRunner().invoke(
        app, ["attribute", str(rows), "-m", str(directory), "--evaluations", "32", "--out", str(out)]
    )
    assert done.exit_code == 0, done.output
    records = [json.loads(line) for line in out.read_text().splitlines()]
    assert [one["quantity"] for one in records] == ["dse_nll"] * 2
    assert [sum(one["per_token"]) for one in records] == pytest.approx([one["value"] for one in records], abs=1e-5)
    assert all(error > 0 for one in records for error in one["per_token_error"])
    assert not any("influence" in one for one in records)
    scores = infodis.score(infodis.load(directory), ["the cat", "sat"], prompts=["", "the cat "], evaluations=32)
    assert [one["value"] for one in records] == pytest.approx([one.value for one in scores], abs=1e-4)
    done = CliRunner().invoke(app, ["attribute", "--prompt", "a ", "--text", "dog", "-m", str(directory)])
    assert done.exit_code == 0, done.output
    assert "dse_nll " in done.output


def test_validation_during_training_is_dse_nll(directory):
    model = infodis.load(directory)
    found = validation_nll(model, ["the cat", "a dog"], evaluations=64)
    scores = infodis.score(model, ["the cat", "a dog"], evaluations=64, seed=1)
    error = math.hypot(found.standard_error, math.hypot(*(one.standard_error for one in scores)) / 12)
    assert abs(found.value - sum(one.value for one in scores) / 12) < 4 * error
    assert found == validation_nll(model, ["the cat", "a dog"], evaluations=64)


def verdicts(found):
    return {one.check: one.verdict for one in found}


@pytest.mark.parametrize("name", NOISY)
def test_the_doctor_does_not_accuse_models_of_noise(name):
    found = doctor(infodis.load(REFERENCES / name))
    assert found.ok, list(found)
    assert {"score entropies", "data and noise", "padding"} <= verdicts(found).keys()
    assert "mask token" not in verdicts(found)


def test_the_doctor_finds_what_is_wrong_with_a_model_of_noise(monkeypatch):
    chain, process = MarkovChain.random(order=1, vocab_size=4, temperature=0.2, seed=1), Uniform(4)
    rows = list(chain.sample(16, length=16, generator=stream(3)))
    exact = NoisyOracle(chain, process)

    def verdict(check, score, some=rows):
        return check(ModelUnderTest(ScorePredictor(score, Noise(process)), some)).verdict

    def deaf(noised, total, where):
        return torch.zeros(*noised.shape, 4)

    assert [verdict(check, exact) for check in (score_entropies, data_and_noise, noised_context)] == ["ok"] * 3
    assert verdict(noised_context, deaf) == "wrong"
    assert verdict(score_entropies, lambda *asked: deaf(*asked) * math.nan) == "wrong"
    assert verdict(data_and_noise, exact, list(torch.randint(4, (16, 16), generator=stream(4)))) == "cannot tell"
    model = infodis.load(REFERENCES / "duo")
    without = model.network.noised_features
    monkeypatch.setattr(
        model.network, "noised_features", lambda tokens, totals, *, visible, at: without(tokens, totals, at=at)
    )
    assert verdicts(doctor(model))["padding"] == "wrong"


def test_gidd_without_uniform_noise_is_a_masked_model(tmp_path):
    made = tmp_path / "gidd"
    shutil.copytree(REFERENCES / "gidd", made)
    config = json.loads((made / "config.json").read_text())
    (made / "config.json").write_text(json.dumps({**config, "p_uniform": 0.0}))
    model = infodis.load(made)
    rows = torch.tensor([[1, 2, 40, 4, 40, 6]])
    told = model.network.hidden(rows, torch.tensor([2 / 6]))
    assert torch.allclose(model.network.features(rows), told)
    assert infodis.score(model, [[1, 2, 3]])[0].quantity == "nll"


def test_the_public_schedule_of_sedd_is_read(tmp_path):
    made = tmp_path / "sedd"
    shutil.copytree(REFERENCES / "sedd-uniform", made)
    config = json.loads((made / "config.json").read_text())
    noise = {"type": "geometric", "sigma_min": 1e-4, "sigma_max": 20}
    (made / "config.json").write_text(json.dumps({**config, "noise": noise}))
    assert infodis.load(made).noise.until == pytest.approx(20)
    weights = load_file(made / "model.safetensors")
    save_file({key: value * math.nan for key, value in weights.items()}, made / "model.safetensors")
    with pytest.raises(InputError, match="NaN"):
        infodis.load(made)
