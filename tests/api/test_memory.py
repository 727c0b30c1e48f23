"""Models that are in memory: wrapped, scored in evaluation mode, and left as they were."""

import pytest
import torch

import infodis
from infodis.errors import InputError
from infodis.models.loading import load
from infodis.models.nets import RADD, NetworkShape, initialise
from infodis.rng import stream

transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")

WORDS = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    "the",
    "capital",
    "of",
    "france",
    "is",
    "paris",
    "rome",
    "a",
    "b",
]
PROMPT, TEXT = "the capital of france is", " paris a b"


def tokenizer():
    """With [CLS] before and [SEP] behind a text."""
    made = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({word: n for n, word in enumerate(WORDS)}, unk_token="[UNK]")
    )
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    names = {"mask_token": "[MASK]", "pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=made, unk_token="[UNK]", **names)


def bert():
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
    config = transformers.BertConfig(vocab_size=len(WORDS), max_position_embeddings=40, **sizes)
    return transformers.BertForMaskedLM(config).eval()


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    where = tmp_path_factory.mktemp("bert")
    bert().save_pretrained(where / "model")
    tokenizer().save_pretrained(where / "tokenizer")
    return where


def test_a_model_of_transformers_against_its_directory(directory):
    found = infodis.nll(load(bert(), tokenizer=tokenizer()), TEXT, prompt=PROMPT)
    loaded = load(directory / "model", tokenizer=str(directory / "tokenizer"), device="cpu")
    assert found.value == pytest.approx(infodis.nll(loaded, TEXT, prompt=PROMPT).value, abs=1e-6)
    other = load(directory / "model", tokenizer=tokenizer(), device="cpu")
    assert found.value == pytest.approx(infodis.nll(other, TEXT, prompt=PROMPT).value, abs=1e-6)


def test_special_tokens_are_read_with_the_text():
    item = load(bert(), tokenizer=tokenizer()).read(TEXT, prompt=PROMPT)
    assert item.tokens.tolist() == [2, 5, 6, 7, 8, 9, 10, 12, 13, 3]
    assert item.target.tolist() == [6, 7, 8]


def test_a_model_in_training_is_scored_without_dropout_and_stays_in_training():
    model, quiet = bert().train(), bert()
    model.bert.encoder.layer[0].eval()
    modes = [module.training for module in model.modules()]
    found = infodis.score(model, [TEXT], tokenizer=tokenizer())
    assert found[0].value == infodis.score(quiet, [TEXT], tokenizer=tokenizer())[0].value
    assert [module.training for module in model.modules()] == modes


def test_nothing_is_copied():
    model = bert()
    wrapped = load(model, tokenizer=tokenizer())
    before = infodis.nll(wrapped, "paris").value
    with torch.no_grad():
        model.cls.predictions.bias[10] += 3
    assert infodis.nll(wrapped, "paris").value < before - 1


def test_a_plain_module_against_from_function():
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Embedding(28, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 27)).train()
    model = load(network, tokenizer="text8", mask_token=27)
    network.eval()
    plain = infodis.from_function(lambda rows: network(rows).log_softmax(-1), vocab_size=27, mask_token=27)
    network.train()
    found = infodis.nll(model, "some text").value
    network.eval()
    assert found == pytest.approx(infodis.nll(plain, model.encode("some text")).value, abs=1e-5)


def test_a_slow_tokenizer_reads_like_a_fast_one(tmp_path):
    (tmp_path / "vocab.txt").write_text("\n".join(WORDS))
    slow = transformers.BertTokenizer(str(tmp_path / "vocab.txt"), do_lower_case=True)
    item = load(bert(), tokenizer=slow).read(TEXT, prompt=PROMPT)
    assert item.tokens[item.target].tolist() == [10, 12, 13]


def test_models_show_themselves_in_a_line():
    assert repr(load(bert(), tokenizer=tokenizer())) == (
        "Model('BertForMaskedLM', in memory, 14 tokens, mask token 4, Subwords, on cpu)"
    )
    assert "\n" not in repr(load("text8-tiny", device="cpu"))


def gpt():
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=14, n_embd=16, n_layer=2, n_head=2))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: load(bert()), "needs its mask_token"),
        (lambda: load(torch.nn.Embedding(5, 4), mask_token=4), "needs its vocab_size"),
        (lambda: load(torch.nn.Embedding(5, 4), mask_token=4, vocab_size=27), "returns? logits|return logits"),
        (lambda: load(gpt(), mask_token=4), "An autoregressive model masks nothing"),
        (lambda: load(bert().bert, mask_token=4), "AutoModelForMaskedLM"),
        (lambda: load(bert(), mask_token=4, device="cuda"), "taken as it is"),
        (lambda: load(bert(), mask_token=4, tokenizer=3), "got a int"),
        (lambda: load("text8-tiny", vocab_size=4), "for a model in memory"),
        (lambda: load("text8-tiny", mask_token=4), "mask_token must be an option that the model can honour"),
        (lambda: infodis.nll(load(bert(), mask_token=4), TEXT), "has no tokenizer"),
    ],
)
def test_bad_models_are_told(call, words):
    with pytest.raises(InputError, match=words):
        call()


def test_a_network_of_ours_knows_its_longest_row():
    """It has learned vectors for so many places: fewer than a batch is padded to, or a check would look at."""
    network = RADD(4, NetworkShape(8, 1, 2, positions=5))
    initialise(network, generator=stream(0, "weights"))
    model = infodis.load(network)
    assert infodis.nll(model, [0, 1, 2, 3, 0]).value > 0
    with pytest.raises(InputError, match="at most 5 tokens, got 6"):
        infodis.nll(model, [0, 1, 2, 3, 0, 1])
