"""Masked language models of transformers, tiny and random, one of each type.

The doctor finds nothing wrong, and `nll` is that of a plain loop over the model's own logits.
"""

import dataclasses
import itertools
import json
import math

import pytest
import torch
from tiny_models import MASK, build

import infodis
from infodis.design import Enumerate
from infodis.models.doctor import ModelUnderTest, examine, with_examples

transformers = pytest.importorskip("transformers")

TYPES = [
    "albert", "bert", "big_bird", "camembert", "convbert", "data2vec-text", "deberta", "deberta-v2", "distilbert",
    "electra", "ernie", "esm", "flaubert", "fnet", "ibert", "layoutlm", "megatron-bert", "mobilebert",
    "modernbert", "mpnet", "nystromformer", "rembert", "roberta", "roberta-prelayernorm", "roformer", "squeezebert",
]  # fmt: skip
LEAKING = {"convbert", "fnet"}
WHOLE = {"mobilebert"}
"""Types whose last layer is not one module, so that all logits are computed."""


def change(directory, **changes):
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", TYPES)
def test_masked_language_models(kind, tmp_path):
    reference = build(kind, tmp_path)
    model = infodis.load(tmp_path)
    assert model.mask_token == (5 if kind == "flaubert" else MASK)  # whose configuration calls it mask_index
    assert model.pads == (kind not in LEAKING)
    assert model.network.split == (kind not in WHOLE)
    findings = list(examine(with_examples(model)))
    assert not [finding for finding in findings if finding.verdict == "wrong"]

    tokens = torch.tensor([7, 20, 33, 8])
    expected = 0.0
    for size in range(1, 5):
        for places in itertools.combinations(range(4), size):
            row = tokens.clone()
            row[list(places)] = model.mask_token
            with torch.no_grad():
                logits = reference(row[None]).logits[0]
            logits[:, model.mask_token] = -math.inf
            cost = -logits.log_softmax(-1)[list(places), tokens[list(places)]].sum()
            expected += float(cost) / (size * math.comb(4, size))
    others = [torch.tensor([9, 10, 11]), torch.tensor([15, 6, 7, 8, 9, 10])]
    found = infodis.nll(model, [others[0], tokens, others[1]], design=Enumerate(), evaluations=63)[1]
    assert found.value == pytest.approx(expected, abs=1e-4)


@pytest.mark.filterwarnings("ignore")
def test_ignored_attention_masks_are_found_and_not_relied_on(tmp_path, monkeypatch):
    """A BERT that ignores its attention mask: padding leaks, so its rows are not padded, and scores stay right."""
    build("bert", tmp_path)
    kind = transformers.models.bert.modeling_bert.BertModel
    right = kind.forward
    monkeypatch.setattr(kind, "forward", lambda self, *a, attention_mask=None, **k: right(self, *a, **k))
    model = infodis.load(tmp_path)
    assert not model.pads
    assert "padding leaks" in model.loaded.notes[-1]
    texts = [torch.tensor([9, 10, 11]), torch.tensor([5, 6, 7, 8, 9, 10])]
    together = infodis.nll(model, texts, evaluations=16)
    alone = [infodis.nll(model, text, evaluations=16).value for text in texts]
    assert [estimate.value for estimate in together] == pytest.approx(alone, abs=1e-4)


@pytest.mark.filterwarnings("ignore")
def test_a_missing_mask_token_is_told(tmp_path):
    build("bert", tmp_path)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    del config["mask_token_id"]
    path.write_text(json.dumps(config))
    with pytest.raises(infodis.errors.InputError, match="which token is the mask"):
        infodis.load(tmp_path)


@pytest.mark.filterwarnings("ignore")
def test_special_tokens_are_context(tmp_path):
    """A BERT tokenizer puts [CLS] and [SEP] around a text; they are read, not scored."""
    tokenizers = pytest.importorskip("tokenizers")
    build("bert", tmp_path)
    words = {"[PAD]": 1, "[UNK]": 0, "[CLS]": 2, "[SEP]": 3, "[MASK]": 4, "the": 5, "cat": 6, "sat": 7}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[UNK]"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.post_processor = tokenizers.processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    made.save(str(tmp_path / "tokenizer.json"))
    model = infodis.load(tmp_path)
    row = model.read("cat sat", prompt="the ")
    assert row.tokens.tolist() == [2, 5, 6, 7, 3]
    assert row.target.tolist() == [2, 3]
    assert row.context.tolist() == [0, 1, 4]
    assert model.log_conditionals(torch.tensor([[2, 4, 3]]))[0, 1, 8:].max() == -math.inf  # beyond the tokenizer
    named = {f.check: f.verdict for f in examine(ModelUnderTest(model, [row.tokens.repeat(3)]))}
    assert named["mask token"] == "ok"
    assert model.around() == ([2], [3])
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"mask_token_id": 6}))
    doubtful = infodis.load(tmp_path)  # the tokenizer knows best
    assert doubtful.mask_token == 4
    assert "config.json calls token 6 the mask" in doubtful.loaded.notes[0]
    doubtful.network.mask_token = 6
    wired = dataclasses.replace(doubtful)
    wrong = {f.check: f for f in examine(ModelUnderTest(wired, [torch.tensor([2, 5, 7, 5, 7, 5, 7, 3])]))}
    assert wrong["mask token"].verdict == "wrong"
    assert "mask_token_id = 4" in wrong["mask token"].hint


@pytest.mark.filterwarnings("ignore")
def test_unknown_words_are_scored_with_slow_tokenizers(tmp_path):
    """A vocab.txt alone: [UNK] in a text is a token of the text, not a special token around it."""
    build("bert", tmp_path)
    words = ["[UNK]", "[PAD]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "sat", "on"]
    (tmp_path / "vocab.txt").write_text("\n".join(words) + "\n")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "BertTokenizer"}))
    model = infodis.load(tmp_path, allow_unknown=True)
    assert not model.loaded.notes
    row = model.read("the dog sat")
    assert (row.tokens.tolist(), row.target.tolist()) == ([2, 5, 0, 7, 3], [1, 2, 3])
    row = model.read("sat on", prompt="the dog cat ")
    assert row.target.tolist() == [4, 5]


@pytest.mark.filterwarnings("ignore")
def test_models_without_a_last_layer_are_not_given_a_random_one(tmp_path):
    build("bert", tmp_path)
    config = transformers.AutoConfig.from_pretrained(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    transformers.AutoModel.from_config(config).save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"mask_token_id": MASK}))
    with pytest.raises(infodis.errors.InputError, match="lacks weights of a masked language model"):
        infodis.load(tmp_path)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda d: change(d, mask_token_id=99), "mask token 99 must lie within the 40"),
        (
            lambda d: (d / "model.safetensors").write_bytes((d / "model.safetensors").read_bytes()[:-9]),
            "cannot be read",
        ),
        (lambda d: (d / "model.safetensors").unlink(), "holds no weights"),
        (lambda d: change(d, model_type="no-such-type"), "cannot load"),
    ],
)
def test_damaged_ones_are_told(tmp_path, damage, message):
    build("bert", tmp_path)
    damage(tmp_path)
    with pytest.raises(infodis.errors.InputError, match=message):
        infodis.load(tmp_path)


@pytest.mark.filterwarnings("ignore")
def test_leaking_padding_is_found_in_half_precision_too(tmp_path):
    build("convbert", tmp_path)
    assert not infodis.load(tmp_path, dtype="bfloat16").pads
