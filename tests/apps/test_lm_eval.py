"""lm-evaluation-harness with our model class: exact on oracles, resumable, and through its real command line."""

import contextlib
import dataclasses
import functools
import itertools
import json
import math
import os
import subprocess
import sys
import time
import warnings
from pathlib import Path

import forks
import pytest
import torch
import typer

pytest.importorskip("lm_eval")

import datasets
import lm_eval.tasks
from command_line import invoke
from lm_eval.api.instance import Instance
from lm_eval.evaluator import simple_evaluate
from lm_eval.tasks import TaskManager
from typer.main import get_command

import infodis
from infodis.apps.lm_eval import scorer as scoring
from infodis.apps.lm_eval.arguments import ModelArgs
from infodis.apps.lm_eval.generation import GenerationRequest, TextGenerator
from infodis.apps.lm_eval.harness import InfodisLM
from infodis.apps.lm_eval.monte_carlo import flip_probability
from infodis.apps.lm_eval.requests import RequestId, RequestReader, Response
from infodis.apps.lm_eval.scorer import ResponseCache
from infodis.cli import app
from infodis.cli.lm_eval import lm_eval as lm_eval_command
from infodis.errors import InputError, PredictorError
from infodis.models.adapters import LoadedModel
from infodis.models.files import locate
from infodis.models.model import Model
from infodis.models.nets.network import Network, NoiseNetwork
from infodis.models.tokenizers import Characters
from infodis.noise.design import Noise
from infodis.noise.process import Uniform
from infodis.noise.scores import NoisyOracle
from infodis.oracle import MarkovChain
from infodis.result import Measured
from infodis.rng import stream
from infodis.settings import UNCOMPARED

ROOT = Path(__file__).parents[2]
TASKS = ROOT / "tests" / "tasks"
LETTERS = "abcd"


class OracleNetwork(Network):
    """An exact distribution as a network."""

    pads = False

    def __init__(self, oracle):
        super().__init__()
        self.oracle = oracle
        self.vocab_size = self.tokens = oracle.vocab_size
        self.mask_token = oracle.mask_token

    def features(self, tokens, *, visible=None, at=None):
        found = self.oracle.log_conditionals(tokens)
        return found if at is None else found[at]

    def token_nll(self, features, tokens):
        return -features.gather(-1, tokens.unsqueeze(-1)).squeeze(-1)

    def logits(self, features):
        return features


class BrokenNetwork(OracleNetwork):
    def token_nll(self, features, tokens):
        return super().token_nll(features, tokens) * math.nan


class NoisyNetwork(NoiseNetwork):
    """The exact scores of a distribution under uniform noise, as a network that takes its prompts for clean."""

    pads = False

    def __init__(self, oracle, prompt=0):
        super().__init__()
        self.exact, self.prompt = NoisyOracle(oracle, Uniform(oracle.vocab_size)), prompt
        self.vocab_size = self.tokens = self.mask_token = oracle.vocab_size

    def noised_features(self, tokens, totals, *, visible=None, at=None):
        where = torch.arange(tokens.shape[1]) >= self.prompt
        return self.exact(tokens, totals.double(), where)[at]

    def log_scores(self, features, noised, totals):
        return features


@pytest.fixture(scope="module")
def chain():
    return MarkovChain.random(order=2, vocab_size=4, seed=3, temperature=0.2)


def as_model(oracle, kind=OracleNetwork):
    opened = LoadedModel("oracle", kind(oracle), Characters(LETTERS), length=32, limit=None)
    return Model("oracle", opened, torch.device("cpu"))


def as_noisy_model(oracle, prompt=0):
    network = NoisyNetwork(oracle, prompt)
    opened = LoadedModel("oracle", network, Characters(LETTERS), 16, None, noise=Noise(network.exact.process))
    return Model("oracle", opened, torch.device("cpu"))


def ask(context, continuation, *, task="task", doc=0, number=0):
    return Instance("loglikelihood", {}, (context, continuation), number, (task, doc, 1))


def words(count, length, *name):
    drawn = torch.randint(4, (count, length), generator=stream(0, *name)).tolist()
    return ["".join(LETTERS[n] for n in row) for row in drawn]


def log_prob(chain, context, text):
    tokens = Characters(LETTERS).encode(context + text)
    return chain.log_prob(torch.from_numpy(tokens), context=range(len(context)))


def evaluated(model, rows, tmp_path, *, metrics, **task):
    """What the harness makes of one task."""
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = {
        "task": "local",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(path)}, "cache_dir": str(tmp_path / "datasets")},
        "test_split": "test",
        "metric_list": [{"metric": name} for name in metrics],
        **task,
    }
    manager = TaskManager(include_defaults=False)
    return simple_evaluate(model=model, tasks=[config], task_manager=manager, bootstrap_iters=0, log_samples=False)


harness = pytest.mark.filterwarnings("ignore")  # its own, and those of the libraries under it


# On an oracle the harness's numbers are the exact ones


@harness
@pytest.mark.parametrize("race", [False, "acc_norm"])
def test_accuracy_against_exact(chain, tmp_path, race):
    contexts = words(20, 5, "contexts")
    rows = []
    for number, context in enumerate(contexts):
        choices = [word[: 7 + n] for n, word in enumerate(words(4, 12, "choices", number))]
        rows.append({"context": context, "choices": choices, "answer": number % 4})
    model = InfodisLM(as_model(chain), race=race, evaluations=64, batch_size=1, device="cuda:0")
    found = evaluated(
        model,
        rows,
        tmp_path,
        metrics=["acc", "acc_norm"],
        output_type="multiple_choice",
        doc_to_text="{{context}}",
        doc_to_choice="{{choices}}",
        doc_to_target="{{answer}}",
        target_delimiter="",
    )
    exact = [[log_prob(chain, row["context"], choice) for choice in row["choices"]] for row in rows]
    for metric in ["acc_norm"] if race else ["acc", "acc_norm"]:  # only what a race is about is decided
        sizes = [[len(choice) if metric == "acc_norm" else 1 for choice in row["choices"]] for row in rows]
        scores = torch.tensor(exact) / torch.tensor(sizes)
        right = scores.argmax(1) == torch.tensor([row["answer"] for row in rows])
        assert found["results"]["local"][f"{metric},none"] == pytest.approx(float(right.double().mean()))
    told = found["config"]["monte_carlo_error"]["local"]
    assert told["acc_norm"] < (0.03 if race else 1e-9)


@harness
def test_bits_per_byte_against_exact(chain, tmp_path):
    """Two windows: the second given half of what came before it."""
    texts = words(3, 40, "texts")
    model = InfodisLM(as_model(chain), stride=16)
    found = evaluated(
        model, [{"text": t} for t in texts], tmp_path, metrics=["bits_per_byte"],
        output_type="loglikelihood_rolling", doc_to_text="", doc_to_target="{{text}}",
    )  # fmt: skip
    exact = sum(log_prob(chain, "", t[:32]) + log_prob(chain, t[16:32], t[32:]) for t in texts)
    assert found["results"]["local"]["bits_per_byte,none"] == pytest.approx(-exact / 120 / math.log(2), abs=1e-9)
    assert found["config"]["monte_carlo_error"]["local"]["bits_per_byte"] < 1e-9


def test_likelihoods_are_exact_and_in_order(chain):
    asked = [("abca", "bcd"), ("", "dcba"), ("abca", "dd"), ("abca", ""), ("", "dcba")]
    found = InfodisLM(as_model(chain)).loglikelihood([ask(*one, doc=n) for n, one in enumerate(asked)])
    for (context, text), (value, greedy) in zip(asked, found, strict=True):
        assert value == pytest.approx(log_prob(chain, context, text) if text else 0.0, abs=1e-9)
        assert greedy or text
    assert found[1] == found[4]


def drawn(chain, count, length):
    rows = chain.sample(count, length=length, generator=stream(1, "drawn"))
    return ["".join(LETTERS[n] for n in row) for row in rows.tolist()]


def z_of(found, errors, exact):
    return (sum(found) - sum(exact)) / math.hypot(*errors)


def test_likelihoods_under_uniform_noise_against_exact(chain, tmp_path):
    """Given their context, with errors: z of 24 requests within 4. Without the context they are other numbers."""
    asked = [(text[:3], text[3:]) for text in drawn(chain, 24, 9)]
    lm = InfodisLM(as_noisy_model(chain, prompt=3), evaluations=48, greedy="never", out=str(tmp_path / "side.jsonl"))
    found = lm.loglikelihood([ask(*one, doc=n) for n, one in enumerate(asked)])
    about, records = side_file(tmp_path / "side.jsonl")
    assert about["quantity"] == "dse_nll"
    errors = [record["standard_error"] for record in records]
    assert min(errors) > 0
    assert [record["evaluations"] for record in records] == [48] * 24
    values = [value for value, _ in found]
    assert abs(z_of(values, errors, [log_prob(chain, *one) for one in asked])) < 4
    assert z_of(values, errors, [log_prob(chain, "", text) for _, text in asked]) > 4


def test_rolling_under_uniform_noise_against_exact(chain, tmp_path):
    """Windows of 16 tokens, added up."""
    texts = drawn(chain, 4, 40)
    lm = InfodisLM(as_noisy_model(chain), evaluations=48, out=str(tmp_path / "side.jsonl"))
    found = lm.loglikelihood_rolling(
        [Instance("loglikelihood_rolling", {}, (text,), 0, ("task", n, 1)) for n, text in enumerate(texts)]
    )
    errors = [record["standard_error"] for record in side_file(tmp_path / "side.jsonl")[1]]
    exact = [sum(log_prob(chain, "", text[n : n + 16]) for n in (0, 16, 32)) for text in texts]
    assert abs(z_of(found, errors, exact)) < 4


def test_what_the_harness_cannot_ask_of_noise_is_told_before_anything_is_scored(chain, monkeypatch):
    model = as_noisy_model(chain)
    monkeypatch.setattr(NoisyNetwork, "noised_features", None)
    with pytest.raises(InputError, match=r"race=acc .*Leave race out"):
        InfodisLM(model, race=True)
    with pytest.raises(InputError, match=r"design=tiled .*Leave design out"):
        InfodisLM(model, design="tiled")
    lm = InfodisLM(model)
    with pytest.raises(InputError, match=r"task, document 7, request 0 may look at it\. Give greedy=never"):
        lm.loglikelihood([ask("ab", "cd", doc=7)])
    with pytest.raises(InputError, match="Leave out tasks that generate"):
        lm.generate_until([Instance("generate_until", {}, ("ab", {"until": ["c"]}), 0, ("task", 0, 1))])


def test_greedy_flag_is_the_decoded_text(chain):
    """Decoding most-confident-first by hand; and one letter changed is no longer greedy."""
    model = as_model(chain)
    row = torch.cat([model.encode("ab"), torch.full((4,), chain.mask_token)])
    while bool((row == chain.mask_token).any()):
        answer = chain.log_conditionals(row.unsqueeze(0))[0]
        certainty = torch.where(row == chain.mask_token, answer.max(-1).values, -math.inf)
        row[certainty.argmax()] = answer[certainty.argmax()].argmax()
    best = model.decode(row)[2:]
    other = best[:-1] + LETTERS[(LETTERS.index(best[-1]) + 1) % 4]
    lm = InfodisLM(model)
    assert [flag for _, flag in lm.loglikelihood([ask("ab", best), ask("ab", other, doc=1)])] == [True, False]
    choices = [ask("ab", best), ask("ab", other, number=1)]
    assert [flag for _, flag in lm.loglikelihood(choices)] == [False, False]  # not asked: one document, two choices
    assert [flag for _, flag in InfodisLM(model, greedy="always").loglikelihood(choices)] == [True, False]
    generator = TextGenerator(RequestReader(model), ModelArgs(), ResponseCache(None, {}))
    written = generator.write([GenerationRequest("ab", 4, (), 0.0)])
    assert written == [([best], 4)]


def test_long_contexts_lose_their_beginning(chain):
    lm = InfodisLM(as_model(chain), max_length=8)
    assert lm.loglikelihood([ask("dddddddd" + "abca", "bcda")]) == lm.loglikelihood([ask("abca", "bcda", doc=1)])
    with pytest.raises(InputError, match=r"document 7.*continuation alone is longer than the 8 tokens"):
        lm.loglikelihood([ask("a", "abcdabcda", doc=7)])
    with pytest.raises(InputError, match="The alphabet is 'abcd'"):
        lm.loglikelihood([ask("a", "xyz")])


def test_nan_raises_before_the_harness_sees_it(chain):
    lm = InfodisLM(as_model(chain, BrokenNetwork))
    with pytest.raises(PredictorError, match="nan"):
        lm.loglikelihood([ask("ab", "cdab")])
    with pytest.raises(PredictorError, match="nan"):
        lm.loglikelihood_rolling([Instance("loglikelihood_rolling", {}, ("abcd",), 0, ("task", 0, 1))])
    with pytest.raises(PredictorError, match="NaN"):
        Response(Measured(math.nan, 0.0), 1, 1)


def test_choices_share_their_random_numbers(chain):
    """Against choices that are documents of their own: less noise in the difference."""
    model = as_model(chain)
    texts = ["abdcabbdcaab", "abdcabbdcaba"]
    together, apart = [], []
    for seed in range(40):
        lm = InfodisLM(model, evaluations=32, seed=seed, design="tiled", greedy="never")
        first, second = lm.loglikelihood([ask("cd", text, number=n) for n, text in enumerate(texts)])
        together.append(first[0] - second[0])
        first, second = lm.loglikelihood([ask("cd", text, doc=n) for n, text in enumerate(texts)])
        apart.append(first[0] - second[0])
    coupled, free = (torch.tensor(some, dtype=torch.float64).std() for some in (together, apart))
    assert float(coupled) < 0.7 * float(free)  # seeds are fixed


def test_responses_do_not_depend_on_the_batch():
    """So several processes give what one gives, and a run that goes on what an undisturbed one does."""
    model = infodis.load("dna-tiny")
    requests = [ask("ACG", text, doc=n // 2, number=n % 2) for n, text in enumerate(("GATTA", "CATTA", "AAAAA", "TTT"))]
    whole = InfodisLM(model, evaluations=16).loglikelihood(requests)
    parts = [InfodisLM(model, evaluations=16, batch_size=3).loglikelihood(requests[n : n + 2]) for n in (2, 0)]
    for (one, _), (other, _) in zip(whole, [*parts[1], *parts[0]], strict=True):
        assert one == pytest.approx(other, abs=1e-4)


# The cache


REQUESTS = [("ACG", "GATTA"), ("ACG", "CATTA"), ("A", "CGTACG")]


def scored(tmp_path, monkeypatch, requests=REQUESTS, **given):
    """Answers, and how many items were estimated for them."""
    items = []
    plain = scoring.estimate_items

    def counting(predictor, some, *rest, **more):
        items.extend(some)
        return plain(predictor, some, *rest, **more)

    monkeypatch.setattr(scoring, "estimate_items", counting)
    lm = InfodisLM("dna-tiny", cache=str(tmp_path / "cache"), **{"evaluations": 16, **given})
    found = lm.loglikelihood([ask(*one, doc=n) for n, one in enumerate(requests)])
    monkeypatch.setattr(scoring, "estimate_items", plain)
    return found, len(items)


def test_a_killed_run_goes_on(tmp_path, monkeypatch):
    undisturbed, count = scored(tmp_path / "other", monkeypatch)
    assert count == 3
    assert scored(tmp_path, monkeypatch, REQUESTS[:2])[1] == 2
    (file,) = (tmp_path / "cache").iterdir()
    file.write_bytes(file.read_bytes() + b'{"key": "0123", "nll": 1.')  # killed in the middle of a line
    found, count = scored(tmp_path, monkeypatch)
    assert count == 1
    for (one, flag), (other, expected) in zip(found, undisturbed, strict=True):
        assert (one, flag) == (pytest.approx(other, abs=1e-4), expected)
    assert scored(tmp_path, monkeypatch) == (found, 0)


def test_a_changed_digit_of_the_cache_is_noticed(tmp_path, monkeypatch):
    first, _ = scored(tmp_path, monkeypatch)
    (file,) = (tmp_path / "cache").iterdir()
    header, *lines = file.read_text().splitlines()
    head, name, tail = lines[1].partition('"nll": ')
    lines[1] = head + name + str((int(tail[0]) + 1) % 10) + tail[1:]
    file.write_text("\n".join([header, *lines]) + "\n")
    found, count = scored(tmp_path, monkeypatch)
    assert count == 1
    assert [value for value, _ in found] == pytest.approx([value for value, _ in first], abs=1e-4)


OTHER = {
    "evaluations": 20,
    "standard_error": 0.5,
    "design": "tiled",
    "seed": 1,
    "race": True,
    "alpha": 0.1,
    "max_length": 8,
    "add_bos_token": True,
    "stride": 3,
    "sampler": "ancestral",
    "steps": 2,
    "max_gen_toks": 8,
}
"""Another value of every setting; `greedy` and `batch_size` change no likelihood."""


def test_no_setting_is_forgotten():
    """A new field of the settings fails here until it has another value above, or says why no answer depends on it."""
    for field in dataclasses.fields(ModelArgs):
        if field.name in ("greedy", "batch_size"):
            assert UNCOMPARED in field.metadata
        else:
            assert ModelArgs(**{field.name: OTHER[field.name]}).settings() != ModelArgs().settings(), field.name


def test_a_model_that_is_handed_over_is_known_as_it_computes(tmp_path):
    low = infodis.load("dna-tiny", dtype="bfloat16")
    InfodisLM("dna-tiny", device="cpu", cache=str(tmp_path), evaluations=16).loglikelihood([ask("ACG", "GATTA")])
    assert len(InfodisLM(low, cache=str(tmp_path), evaluations=16)._cache) == 0
    again = InfodisLM(infodis.load("dna-tiny"), cache=str(tmp_path), evaluations=16)
    assert len(again._cache) > 0


@pytest.mark.parametrize("other", [{"seed": 1}, {"evaluations": 20}, {"design": "tiled"}, {"dtype": "bfloat16"}])
def test_other_settings_have_other_answers(tmp_path, monkeypatch, other):
    first, _ = scored(tmp_path, monkeypatch)
    assert scored(tmp_path, monkeypatch, **other)[1] == 3
    assert len(list((tmp_path / "cache").iterdir())) == 2
    assert scored(tmp_path, monkeypatch) == (first, 0)


def test_another_model_has_other_answers(tmp_path, monkeypatch):
    """The same name, other weights: what the harness's own cache mixes up."""
    from safetensors.torch import load_file, save_file

    first, _ = scored(tmp_path, monkeypatch)
    copy = tmp_path / "copy"
    copy.mkdir()
    original = locate("dna-tiny")
    for file in original.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    lm = InfodisLM(str(copy), cache=str(tmp_path / "cache"), evaluations=16)
    assert len(lm._cache) > 0  # the same content elsewhere is the same model
    weights = load_file(copy / "model.safetensors")
    name = next(name for name in weights if weights[name].is_floating_point())
    save_file({**weights, name: weights[name] * 1.5}, copy / "model.safetensors")
    changed = InfodisLM(str(copy), cache=str(tmp_path / "cache"), evaluations=16)
    assert len(changed._cache) == 0
    found = changed.loglikelihood([ask(*one, doc=n) for n, one in enumerate(REQUESTS)])
    assert found != first


def test_a_cache_with_another_header_is_refused(tmp_path):
    ResponseCache(tmp_path, {"seed": 0}).add({"a": {"nll": 1.0}})
    (file,) = tmp_path.iterdir()
    assert ResponseCache(tmp_path, {"seed": 0}).get("a") == {"nll": 1.0}
    assert ResponseCache(tmp_path, {"seed": 1}).get("a") is None
    file.write_text(file.read_text().replace('"seed": 0', '"seed": 9'))
    with pytest.raises(InputError, match="first line is another one"):
        ResponseCache(tmp_path, {"seed": 0})
    with pytest.raises(InputError, match="loaded from files"):
        InfodisLM(as_model(MarkovChain.random(order=1, vocab_size=4)), cache=str(tmp_path))


# What is written, and what is said


def test_texts_are_cut_and_drawn(chain):
    model = as_model(chain)
    generate = [Instance("generate_until", {}, ("ab", {"until": ["c"], "max_gen_toks": 6}), 0, ("task", 0, 1))]
    (text,) = InfodisLM(model).generate_until(generate)
    assert "c" not in text
    drawn = {"max_gen_toks": 8, "do_sample": True, "temperature": 1.0}
    requests = [Instance("generate_until", {}, ("ab", drawn), 0, ("task", 0, 1))] * 6
    texts = InfodisLM(model, sampler="random").generate_until(requests)
    assert len(texts) == 6
    assert len(set(texts)) > 1
    assert texts == InfodisLM(model, sampler="random").generate_until(requests)
    with pytest.raises(InputError, match="do not fit into a row of 32"):
        InfodisLM(model).generate_until([Instance("generate_until", {}, ("ab", {}), 0, ("task", 0, 1))])


def test_chance_of_another_decision_against_draws():
    scores, errors = [3.0, 3.4, 5.0], [0.5, 0.3, 2.0]
    drawn = torch.randn(200_000, 3, generator=stream(0, "flips"), dtype=torch.float64)
    leaders = (torch.tensor(scores) + torch.tensor(errors) * drawn).argmin(1)
    assert flip_probability(scores, errors) == pytest.approx(
        float((leaders != 0).double().mean()), abs=0.005
    )  # 4.5 sigma
    assert flip_probability([1.0, math.inf], [0.0, 0.0]) == 0.0
    assert flip_probability([math.inf, math.inf], [0.0, 0.0]) == 0.0


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"evaluation": 3}, "no model argument evaluation. Did you mean evaluations"),
        ({"evaluations": 0}, "at least 1"),
        ({"race": "yes"}, "race is true, false or one of acc"),
        ({"race": True, "standard_error": 0.1}, "Leave one out"),
        ({"greedy": "maybe"}, "greedy is one of"),
        ({"design": "best"}, "A design is one of"),
        ({"max_length": 0}, "at least 1"),
        ({"batch_size": "many"}, "whole number or auto"),
        ({"sampler": "dice"}, "A rule is one of"),
    ],
)
def test_wrong_arguments_are_told(given, message):
    with pytest.raises(InputError, match=message):
        ModelArgs.read(given)


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        ("text8-tiny", {"block_size": 4}, "block_size must be an option that the model can honour"),
        ("text8-tiny", {"block_origin": "response"}, "has no blocks of several tokens"),
        ("text8-block4", {"block_size": 8}, "block_size must be an option that the model can honour"),
        ("text8-block4", {"causal": True}, "causal must be an option that the model can honour"),
        ("text8-block4", {"block_origin": "there"}, "block_origin is one of global, response"),
        ("text8-causal", {"block_origin": "response"}, "has no blocks of several tokens"),
        ("text8-causal", {"steps": 3}, "one forward pass a token"),
    ],
)
def test_wrong_combinations_are_told(name, given, message):
    with pytest.raises(InputError, match=message):
        InfodisLM(name, device="cpu", **given)


def test_a_model_that_is_handed_over_takes_no_options():
    with pytest.raises(InputError, match="got block_size too"):
        InfodisLM(infodis.load("text8-tiny"), block_size=4)


# Models of blocks and causal ones: exact, whatever the prompt cuts


def exact_nll(model, prompt, text):
    """The mask average by its definition, block by block, by rows [noisy ; clean]; of a causal model the chain rule."""
    tokens, start, size = model.encode(prompt + text), len(prompt), model.blocks.size
    origin = start if model.blocks.origin == "response" else 0
    blocks = (torch.arange(len(tokens)) - origin).div(size, rounding_mode="floor")
    if model.network.causal:
        masked = torch.arange(len(tokens)) >= start
        return float(model.network.surprisal(tokens[None], masked[None]).sum())
    total = 0.0
    for block in blocks[start:].unique():
        places = [place for place in range(start, len(tokens)) if blocks[place] == block]
        subsets = [list(some) for n in range(len(places)) for some in itertools.combinations(places, n + 1)]
        noisy = torch.stack([tokens.index_fill(0, torch.tensor(hidden), model.mask_token) for hidden in subsets])
        features = model.network.plain_features(noisy, tokens.expand(len(noisy), -1), blocks=blocks[None])
        costs = -model.network.logits(features).log_softmax(-1)[:, range(len(tokens)), tokens]
        for cost, hidden in zip(costs, subsets, strict=True):
            total += float(cost[hidden].sum()) / (len(hidden) * math.comb(len(places), len(hidden)))
    return total


@torch.no_grad()
@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("text8-block4", {}),
        ("text8-block4", {"block_origin": "response"}),
        ("text8-block4", {"race": "acc"}),
        ("text8-causal", {}),
    ],
)
def test_models_of_blocks_against_enumeration(name, given):
    """Choices of unequal length, after prompts that end in a block; read together, with one clean pass a prompt."""
    lm = InfodisLM(name, device="cpu", **given)
    prompts = ["the capital city of france is", "in one nine eight four he became the"]
    choices = [" paris", " a", " not known", " paris which"]
    requests = [
        ask(prompt, choice, doc=doc, number=number)
        for doc, prompt in enumerate(prompts)
        for number, choice in enumerate(choices)
    ]
    found = lm.loglikelihood(requests, True)
    exact = [-exact_nll(lm.model, *one.args) for one in requests]
    assert [value for value, _ in found] == pytest.approx(exact, abs=1e-4)
    assert given.get("race") or all(error.variance == 0 for error in lm._errors)
    lengths = sum(len(prompt) for prompt in prompts) + sum(len(choice) for choice in choices) * len(prompts)
    assert lm.model.clean_texts.tokens <= lengths + 2 * 8  # each prompt once


@torch.no_grad()
@pytest.mark.parametrize("name", ["text8-block4", "text8-causal"])
def test_rolling_texts_against_enumeration(name):
    """Windows of a text, given some of what comes before, which may end inside a block."""
    text = "the first edition appeared in nineteen twenty one and was sold out"
    lm = InfodisLM(name, device="cpu", max_length=40, stride=18)
    found = lm.loglikelihood_rolling([Instance("loglikelihood_rolling", {}, (text,), 0, ("task", 0, 1))], True)
    windows = RequestReader(lm.model, 40, 18).windows(RequestId("task", 0, 0), text).windows
    parts = [(lm.model.decode(one.tokens), one.context.numel()) for one in windows]
    assert "".join(part[context:] for part, context in parts) == text
    assert any(context % 4 for _, context in parts)
    exact = sum(exact_nll(lm.model, part[:context], part[context:]) for part, context in parts)
    assert found == pytest.approx([-exact], abs=2e-4)


@pytest.mark.parametrize("name", ["text8-block4", "text8-causal", "text8-tiny"])
def test_writing_ends_at_a_stop_text(name):
    """The text is what it would be without, cut; the passes behind it are saved where blocks follow one another."""
    asked = {"max_gen_toks": 24, "do_sample": False}
    lms = [InfodisLM(name, device="cpu", sampler="most-confident:4") for _ in range(2)]
    contexts = ["the president of the united ", "in one nine eight "]
    found = []
    for lm, until in zip(lms, ([], [" "]), strict=True):
        requests = [
            Instance("generate_until", {}, (context, {**asked, "until": until}), 0, ("task", doc, 1))
            for doc, context in enumerate(contexts)
        ]
        found.append(lm.generate_until(requests, True))
    assert found[1] == [text.split(" ")[0] for text in found[0]]
    generator = TextGenerator(RequestReader(lms[1].model), lms[1].args, ResponseCache(None, {}))
    for text, (_, spent) in zip(
        found[1], generator.write([GenerationRequest(c, 24, (" ",), 0.0) for c in contexts]), strict=True
    ):
        assert spent <= len(text) + 5


def test_drawn_texts_do_not_depend_on_their_batch():
    """Of a model whose blocks begin with the response, at a temperature of its own."""
    model = infodis.load("text8-block4", block_origin="response")
    contexts = ["the president of the united ", "in one nine eight ", "a"]
    requests = [GenerationRequest(context, 9, (), 0.7) for context in contexts]
    alone, together = (
        [
            text
            for some in parts
            for text in TextGenerator(RequestReader(model), ModelArgs(), ResponseCache(None, {})).write(some, 2)
        ]
        for parts in ([[one] for one in requests], [requests])
    )
    assert alone == together
    assert all(len(texts) == 2 and texts[0] != texts[1] for texts, _ in together)


def test_chat_templates_are_not_read_twice(tmp_path):
    """The template writes the special tokens out that reading would add."""
    import shutil

    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    shutil.copytree(ROOT / "tests" / "references" / "llada", tmp_path / "chat")
    vocabulary = {word: n for n, word in enumerate(["<s>", "user", "hi", "there", "bot", "<unk>"])}
    made = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.add_special_tokens(["<s>"])
    made.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    made.save(str(tmp_path / "chat" / "tokenizer.json"))
    turns = "{% for m in messages %} {{ m.role }} {{ m.content }}{% endfor %}"
    template = "<s>" + turns + "{% if add_generation_prompt %} bot{% endif %}"
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "chat_template": template}
    (tmp_path / "chat" / "tokenizer_config.json").write_text(json.dumps(settings))
    lm = InfodisLM(str(tmp_path / "chat"))
    said = lm.apply_chat_template([{"role": "user", "content": "hi"}])
    assert said == "<s> user hi bot"
    assert lm.chat_template(True) == template
    item = RequestReader(lm.model).pair(RequestId("task", 0, 0), said, " there").item
    assert item.tokens.tolist() == [0, 1, 2, 4, 3]
    assert item.target.tolist() == [4]


def test_begin_tokens_stand_before_a_text():
    """A shifted model says nothing about the first token: where there is no context, a begin token stands there."""
    model = infodis.load(ROOT / "tests" / "references" / "dream", tokenizer=Characters("0123456789"))
    model = dataclasses.replace(model, loaded=dataclasses.replace(model.loaded, begin_token=9))
    id = RequestId("task", 0, 0)
    for added, context, expected in ((False, "", [9, 1, 2]), (False, "3", [3, 1, 2]), (True, "3", [9, 3, 1, 2])):
        item = RequestReader(model, add_bos_token=added).pair(id, context, "12").item
        assert item.tokens.tolist() == expected
        assert item.target.tolist() == [len(expected) - 2, len(expected) - 1]
    with pytest.raises(InputError, match="no begin token"):
        RequestReader(infodis.load("dna-tiny"), add_bos_token=True)


# The real command line


def offline(tmp_path):
    switches = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    return {**os.environ, **switches, "HF_HOME": str(tmp_path / "hub")}


def run(*arguments, tmp_path, launcher=()):
    """`infodis lm-eval` in a new process, without a network; its results."""
    command = [sys.executable, *launcher, "-m", "infodis", "lm-eval", "--include_path", "tests/tasks"]
    done = subprocess.run(
        [*command, "--output_path", str(tmp_path / "results"), *arguments],
        env=offline(tmp_path), cwd=ROOT, capture_output=True, text=True, timeout=280,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return written(tmp_path)


def run_forked(*arguments, tmp_path):
    """The same in a fork of this process, without the harness's own tasks: reading their names takes long."""

    def command():
        warnings.simplefilter("ignore")  # of others
        os.environ.update(offline(tmp_path))
        os.chdir(ROOT)
        datasets.config.HF_DATASETS_CACHE = str(tmp_path / "datasets")
        lm_eval.tasks.TaskManager = functools.partial(TaskManager, include_defaults=False)
        asked = ["--include_path", "tests/tasks", "--output_path", str(tmp_path / "results"), *arguments]
        with (tmp_path / "printed").open("w") as file, contextlib.redirect_stdout(file):
            context = typer.Context(get_command(app))
            context.args = asked
            lm_eval_command(context)

    assert forks.exit_code(command) == 0
    return written(tmp_path), (tmp_path / "printed").read_text()


def written(tmp_path):
    (path,) = (tmp_path / "results").rglob("results*.json")
    return json.loads(path.read_text())


def side_file(path):
    about, *records = (json.loads(line) for line in path.read_text().splitlines())
    return about["about"], records


ALL = "infodis_choices,infodis_text,infodis_words,infodis_last"


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_command_line_from_end_to_end(tmp_path):
    arguments = f"pretrained=text8-tiny,evaluations=32,out={tmp_path}/side.jsonl,cache={tmp_path}/cache"
    results, printed = run_forked("--model", "infodis", "--model_args", arguments, "--tasks", ALL, tmp_path=tmp_path)
    scores = results["results"]
    assert scores["infodis_choices"]["acc,none"] > 0.5  # a third by chance
    assert "infodis_choices: accuracy 0." in printed
    assert ", of which Monte Carlo error at most 0.0" in printed
    about, records = side_file(tmp_path / "side.jsonl")
    assert about["model"] == infodis.load("text8-tiny").fingerprint
    assert len(records) == 36 + 6 + 3 + 4
    assert all(record["evaluations"] <= 64 for record in records)
    assert all(("greedy" in record) == (record["task"] == "infodis_last") for record in records[:42])
    _same_as_perplexity(scores["infodis_text"], results["config"]["monte_carlo_error"]["infodis_text"], tmp_path)


def _same_as_perplexity(scores, errors, tmp_path):
    """Bits per byte of `infodis perplexity` on the same documents, with other masks: 4 sigma, one in 16,000."""
    out = tmp_path / "windows.jsonl"
    command = ["perplexity", str(TASKS / "text.jsonl"), "--evaluations", "32", "--threads", "1", "--out", str(out)]
    invoke(*command)
    windows = [json.loads(line) for line in out.read_text().splitlines()]
    size = sum(window["bytes"] for window in windows) * math.log(2)
    rate = sum(window["value"] for window in windows) / size
    error = math.sqrt(sum(window["standard_error"] ** 2 for window in windows)) / size
    both = math.hypot(error, errors["bits_per_byte"])
    assert abs(scores["bits_per_byte,none"] - rate) < 4 * both
    assert both < 0.1


@pytest.mark.slow
def test_two_processes_give_the_same_as_one(tmp_path):
    found = []
    two = ("-m", "torch.distributed.run", "--nproc_per_node", "2", "--master_port", "29517")
    for name, launcher in (("one", ()), ("two", two)):
        arguments = f"pretrained=text8-tiny,evaluations=32,out={tmp_path}/{name}.jsonl,cache={tmp_path}/{name}"
        options = ["--model", "infodis", "--model_args", arguments, "--tasks", ALL]
        results = run(*options, tmp_path=tmp_path / name, launcher=launcher)
        records = {(r["task"], r["doc_id"], r["idx"]): r for r in side_file(tmp_path / f"{name}.jsonl")[1]}
        found.append((results["results"], records))
    (one, mine), (two, its) = found
    assert mine.keys() == its.keys()
    for place, record in mine.items():
        for field in {"nll", "standard_error"} & record.keys():  # a written text has none
            assert record[field] == pytest.approx(its[place][field], abs=2e-3, rel=1e-4)
    for task, scores in one.items():
        for metric, value in scores.items():
            if isinstance(value, float) and "stderr" not in metric:
                assert value == pytest.approx(two[task][metric], rel=1e-3), (task, metric)


@pytest.mark.slow
def test_a_killed_command_goes_on(tmp_path):
    """Killed as soon as something is in the cache; what was known is not asked again."""
    arguments = f"pretrained=text8-tiny,evaluations=256,cache={tmp_path}/cache,out={tmp_path}/side.jsonl"
    command = [sys.executable, "-m", "infodis", "lm-eval", "--include_path", "tests/tasks", "--model", "infodis"]
    silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    command = [*command, "--model_args", arguments, "--tasks", ALL]
    with subprocess.Popen(command, env=offline(tmp_path), cwd=ROOT, **silent) as killed:
        end = time.monotonic() + 200
        while time.monotonic() < end and not list((tmp_path / "cache").glob("*.jsonl")):
            time.sleep(0.05)
        killed.kill()
    (file,) = (tmp_path / "cache").iterdir()
    known = file.read_text().splitlines()
    options = ["--model", "infodis", "--model_args", arguments, "--tasks", ALL]
    run(*options, tmp_path=tmp_path)
    lines = file.read_text().splitlines()
    assert lines[: len(known)] == known
    assert len({json.loads(line)["key"] for line in lines[1:]}) == len(lines) - 1
