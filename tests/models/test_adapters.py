"""Models as people have them, against their own code, recorded; and against a plain loop."""

import dataclasses
import itertools
import json
import math
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import infodis
from infodis.design import Enumerate
from infodis.errors import InputError
from infodis.models.doctor import examine, with_examples
from infodis.rng import stream
from infodis.sampling import sample

REFERENCES = Path(__file__).parents[1] / "references"
FOREIGN = Path(__file__).parents[3] / "shared" / "data" / "weights" / "rxnmapper_albert"


def plain_nll(conditionals, tokens, mask_token) -> float:
    """The mask average by its definition, one row at a time: every mask of the target, weighted by 1 / (k C(m, k))."""
    length = len(tokens)
    total = 0.0
    for size in range(1, length + 1):
        for places in itertools.combinations(range(length), size):
            row = tokens.clone()
            row[list(places)] = mask_token
            found = conditionals(row[None])[0]
            cost = -sum(float(found[place, tokens[place]]) for place in places)
            total += cost / (size * math.comb(length, size))
    return total


def allowed(logits, forbidden):
    """Log-probabilities with some columns at zero probability and the rest renormalised."""
    logits = logits.clone()
    logits[..., forbidden] = -math.inf
    return logits.log_softmax(-1)


@pytest.mark.parametrize(("name", "forbidden"), [("llada", [36, 40, 41, 42, 43]), ("dream", [36]), ("mdlm", [40])])
def test_families_against_peer(name, forbidden):
    """Recorded from their public code by references/record_hub.py; the mask and padding at exactly zero probability."""
    model = infodis.load(REFERENCES / name)
    answer = load_file(REFERENCES / name / "answer.safetensors")
    expected = allowed(answer["output"], forbidden)[..., : model.vocab_size]
    found = model.network.log_conditionals(answer["tokens"])
    first = model.network.first_predicted
    assert first == (name == "dream")
    torch.testing.assert_close(found[:, first:], expected[:, first:], atol=1e-4, rtol=1e-5)
    assert (found[..., [c for c in forbidden if c < model.vocab_size]] == -math.inf).all()


@pytest.mark.parametrize("name", ["llada", "mdlm", "radd", "sedd-absorb"])
def test_nll_is_that_of_a_plain_loop(name):
    model = infodis.load(REFERENCES / name)
    tokens = torch.tensor([3, 7, 1, 9, 0])
    found = infodis.nll(model, tokens, design=Enumerate(), evaluations=31)
    assert found.value == pytest.approx(plain_nll(model.log_conditionals, tokens, model.mask_token), abs=1e-4)


def test_shifted_models_say_nothing_about_the_first_token():
    model = infodis.load(REFERENCES / "dream")
    with pytest.raises(InputError, match="says nothing about the first 1 token"):
        infodis.nll(model, [3, 4, 5])
    found = infodis.nll(model, [1, 3, 4, 5], context=[0], design=Enumerate(), evaluations=7)
    answers = model.log_conditionals

    def rest(rows):
        return answers(torch.cat([torch.ones(len(rows), 1, dtype=torch.int64), rows], dim=1))[:, 1:]

    assert found.value == pytest.approx(plain_nll(rest, torch.tensor([3, 4, 5]), model.mask_token), abs=1e-4)


def test_an_unshifted_dream_would_be_seen():
    """Negative control: without the shift the recorded answer is missed by far."""
    model = infodis.load(REFERENCES / "dream")
    answer = load_file(REFERENCES / "dream" / "answer.safetensors")
    model.network.shifted = False
    found = model.network.log_conditionals(answer["tokens"])
    assert (found - allowed(answer["output"], [36])).nan_to_num(posinf=0, neginf=0)[:, 1:].abs().max() > 1


@pytest.mark.parametrize("name", ["llada", "dream", "mdlm", "radd", "sedd-absorb"])
def test_a_sequence_scores_the_same_in_any_batch(name):
    """Alone, or padded beside longer ones: to 1e-4 in float32."""
    model = infodis.load(REFERENCES / name)
    texts = [torch.randint(10, (length,), generator=stream(0, length)) for length in (4, 11, 7, 15)]
    how = {"evaluations": 16, "context": [0]}
    together = infodis.nll(model, texts, **how)
    for text, estimate in zip(texts, together, strict=True):
        assert infodis.nll(model, text, **how).value == pytest.approx(estimate.value, abs=1e-4)


def test_lower_precision_is_near(tmp_path):
    """Shards in bfloat16, computed in bfloat16: a few hundredths of a nat a token."""
    shutil.copytree(REFERENCES / "llada", tmp_path / "half")
    for shard in (tmp_path / "half").glob("model-*.safetensors"):
        save_file({key: value.bfloat16() for key, value in load_file(shard).items()}, shard)
    tokens = torch.tensor([3, 7, 1, 9, 0, 5])
    exact = infodis.nll(infodis.load(REFERENCES / "llada"), tokens, evaluations=16).value
    stored = infodis.nll(infodis.load(tmp_path / "half"), tokens, evaluations=16).value
    computed = infodis.nll(infodis.load(tmp_path / "half", dtype="bfloat16"), tokens, evaluations=16).value
    assert 0 < abs(stored - exact) < 0.3
    assert 0 < abs(computed - stored) < 0.6


def test_a_tokenizer_says_which_columns_are_padding(tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    shutil.copytree(REFERENCES / "llada", tmp_path / "llada")
    words = {f"w{n}": n for n in range(36)} | {"<|mdm_mask|>": 36, "w37": 37}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="w0"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    made.save(str(tmp_path / "llada" / "tokenizer.json"))
    model = infodis.load(tmp_path / "llada")
    answer = load_file(REFERENCES / "llada" / "answer.safetensors")
    found = model.log_conditionals(answer["tokens"])
    torch.testing.assert_close(found, allowed(answer["output"], [36, *range(38, 44)]), atol=1e-4, rtol=1e-5)
    row = model.read("w5 w6", prompt="w1 w2 ")
    assert (row.tokens.tolist(), row.target.tolist(), row.context.tolist()) == ([1, 2, 5, 6], [2, 3], [0, 1])


@pytest.mark.skipif(not FOREIGN.is_dir(), reason="the foreign model is not here")
def test_a_foreign_albert_against_a_plain_loop():
    transformers = pytest.importorskip("transformers")
    model = infodis.load(FOREIGN)
    reference = transformers.AutoModelForMaskedLM.from_pretrained(FOREIGN).eval()
    vocabulary = (FOREIGN / "vocab.txt").read_text().splitlines()
    tokens = torch.tensor([vocabulary.index(piece) for piece in ("C", "C", "O")])
    mask = vocabulary.index("[MASK]")
    assert model.mask_token == mask
    assert any("tokenizer" in note for note in model.loaded.notes)  # its type of tokenizer expects other files

    @torch.no_grad()
    def conditionals(rows):
        return allowed(reference(rows).logits, [mask, *range(len(vocabulary), reference.config.vocab_size)])

    found = infodis.nll(model, tokens, design=Enumerate(), evaluations=7)
    assert found.value == pytest.approx(plain_nll(conditionals, tokens, mask), abs=1e-4)


def test_damaged_models_are_told(tmp_path):
    def damaged(name, change):
        directory = tmp_path / f"{name}-{len(list(tmp_path.iterdir()))}"
        shutil.copytree(REFERENCES / name, directory)
        change(directory)
        return directory

    def config(**changes):
        def change(directory):
            path = directory / "config.json"
            path.write_text(json.dumps(json.loads(path.read_text()) | changes))

        return change

    cases = [
        ("llada", lambda d: (d / "model-00002-of-00002.safetensors").unlink(), "lacks model-00002-of-00002"),
        ("llada", lambda d: (d / "model-00001-of-00002.safetensors").write_bytes(b"x"), "cannot be read"),
        ("llada", lambda d: (d / "model.safetensors.index.json").write_text("{}"), "not an index of weights"),
        ("llada", lambda d: (d / "model.safetensors.index.json").unlink(), "holds no weights"),
        ("llada", config(mask_token_id=None), "lacks mask_token_id"),
        ("llada", config(mask_token_id=99), "mask token 99"),
        ("llada", config(d_model=64), "has shape"),
        ("llada", config(weight_tying=True), "does not know: weight_tying = True"),
        ("llada", config(n_layers=3), "lacks weights: blocks.2"),
        ("dream", config(num_hidden_layers=1), "not part of the network"),
        ("mdlm", lambda d: (d / "config.json").write_text('{"hidden_dim": 8}'), "No family of models recognises"),
        ("dream", lambda d: (d / "config.json").write_text("[]"), "must hold an object"),
        ("dream", lambda d: (d / "config.json").unlink(), r"no config\.json"),
    ]
    for name, change, message in cases:
        with pytest.raises(InputError, match=message):
            infodis.load(damaged(name, change))
    with pytest.raises(InputError, match="dtype is one of"):
        infodis.load(REFERENCES / "llada", dtype="int8")
    with pytest.raises(InputError, match="at most 32 tokens, got 33"):
        infodis.nll(infodis.load(REFERENCES / "llada"), [1] * 33)


def test_pickles_are_not_unpickled(tmp_path):
    import pickle

    shutil.copytree(REFERENCES / "mdlm", tmp_path / "mdlm")
    weights = {}
    for shard in (tmp_path / "mdlm").glob("model*"):
        if shard.suffix == ".safetensors":
            weights |= load_file(shard)
        shard.unlink()
    torch.save(weights, tmp_path / "mdlm" / "pytorch_model.bin")
    tokens = torch.tensor([3, 7, 1])
    same = infodis.nll(infodis.load(tmp_path / "mdlm"), tokens).value
    assert same == pytest.approx(infodis.nll(infodis.load(REFERENCES / "mdlm"), tokens).value, abs=1e-5)

    class Evil:
        def __reduce__(self):
            return (Path(tmp_path / "pwned").touch, ())

    (tmp_path / "mdlm" / "pytorch_model.bin").write_bytes(pickle.dumps({"a": Evil()}))
    with pytest.raises(InputError, match="unpickling can run any code"):
        infodis.load(tmp_path / "mdlm")
    assert not (tmp_path / "pwned").exists()


def test_code_of_strangers_runs_only_if_asked(tmp_path):
    pytest.importorskip("transformers")
    (tmp_path / "config.json").write_text(
        json.dumps({"model_type": "mystery", "auto_map": {"AutoModelForMaskedLM": "modeling.Mystery"}})
    )
    (tmp_path / "modeling.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    with pytest.raises(InputError, match="trust_remote_code=True"):
        infodis.load(tmp_path)
    assert not (tmp_path / "ran").exists()


def test_autocast_is_an_option():
    tokens = torch.tensor([3, 7, 1, 9, 0, 5])
    plain = infodis.nll(infodis.load(REFERENCES / "llada"), tokens, evaluations=16).value
    lowered = infodis.nll(infodis.load(REFERENCES / "llada", autocast=True), tokens, evaluations=16).value
    assert 0 < abs(lowered - plain) < 0.6


@pytest.mark.parametrize("name", ["llada", "dream", "mdlm", "radd", "sedd-absorb"])
def test_the_doctor_finds_nothing_wrong(name):
    findings = list(examine(with_examples(infodis.load(REFERENCES / name))))
    assert not [finding for finding in findings if finding.verdict == "wrong"]


def test_shifted_models_refuse_to_answer_about_the_first_token_everywhere():
    model = infodis.load(REFERENCES / "dream")
    with pytest.raises(InputError, match="says nothing about the first"):
        infodis.order_nll(model, [3, 4, 5], order="most-confident")
    with pytest.raises(InputError, match="says nothing about the first"):
        sample(model, torch.full((1, 4), model.mask_token))


def test_dream_begins_with_its_begin_token(tmp_path):
    """Qwen's files as published, without a tokenizer.json: read by transformers; padding of the vocabulary excluded."""
    pytest.importorskip("transformers")
    shutil.copytree(REFERENCES / "dream", tmp_path / "dream")
    pieces = [chr(n) for n in range(97, 123)] + ["\u0120", "ab"]  # the space of byte-level tokenizers
    (tmp_path / "dream" / "vocab.json").write_text(json.dumps({piece: n for n, piece in enumerate(pieces)}))
    (tmp_path / "dream" / "merges.txt").write_text("#version: 0.2\na b\n")
    added = {"28": "<|endoftext|>", "29": "<|beginoftext|>", **{str(n): f"<|{n}|>" for n in range(30, 36)}}
    added["36"] = "<|mask|>"
    settings = {
        "tokenizer_class": "DreamTokenizer",
        "bos_token": "<|beginoftext|>",
        "mask_token": "<|mask|>",
        "added_tokens_decoder": {n: {"content": piece, "special": True} for n, piece in added.items()},
    }
    (tmp_path / "dream" / "tokenizer_config.json").write_text(json.dumps(settings))
    model = infodis.load(tmp_path / "dream")
    assert not model.loaded.notes
    row = model.read("abc")
    assert (row.tokens.tolist(), row.target.tolist(), row.context.tolist()) == ([29, 27, 2], [1, 2], [0])
    assert model.network.tokens == 37
    assert model.around() == ([29], [])


def test_a_gpu_is_filled_to_two_thirds(monkeypatch):
    """What a probe of 1024 tokens takes decides; the memory of the GPU is made up here."""
    from infodis.models import model as module

    loaded = dataclasses.replace(infodis.load(REFERENCES / "llada").loaded, limit=32)
    for name, value in (("memory_allocated", 0), ("max_memory_allocated", 2**20)):
        monkeypatch.setattr(torch.cuda, name, lambda device, value=value: value)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: None)
    assert module._gpu_budget(loaded, torch.device("cpu"), 3 * 2**24) == 2**15
    assert module._gpu_budget(loaded, torch.device("cpu"), 0) == 2**10


@pytest.mark.filterwarnings("ignore")
def test_chat_templates_wrap_the_prompt(tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    pytest.importorskip("transformers")
    shutil.copytree(REFERENCES / "llada", tmp_path / "chat")
    words = {"[UNK]": 0, "<user>": 1, "<bot>": 2, "hi": 3, "there": 4}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[UNK]"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    made.save(str(tmp_path / "chat" / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "[UNK]"}
    path = tmp_path / "chat" / "tokenizer_config.json"
    path.write_text(json.dumps(settings))
    with pytest.raises(InputError, match="no chat template"):
        infodis.load(tmp_path / "chat").read("there", prompt="hi", chat=True)
    template = (
        "{% for m in messages %}<user> {{ m.content }} {% endfor %}{% if add_generation_prompt %}<bot> {% endif %}"
    )
    path.write_text(json.dumps(settings | {"chat_template": template}))
    row = infodis.load(tmp_path / "chat").read("there", prompt="hi", chat=True)
    assert (row.tokens.tolist(), row.target.tolist()) == ([1, 3, 2, 4], [3])
