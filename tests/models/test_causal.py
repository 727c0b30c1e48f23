"""Autoregressive models of transformers, tiny and random, against transformers' own loss."""

import json
import math

import pytest
import torch

import infodis
from infodis.blocks import BlockLayout
from infodis.errors import InputError
from infodis.models.adapters.causal_lm import recognises
from infodis.rng import stream

transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")

pytestmark = pytest.mark.filterwarnings("ignore")

LETTERS = "abcdefghijklmnopqrstuvwxyz "
BEGIN = len(LETTERS)
COLUMNS = BEGIN + 2  # and one for what is not known
SIZES = {
    "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8,
    "intermediate_size": 24, "vocab_size": COLUMNS, "max_position_embeddings": 64, "bos_token_id": BEGIN,
    "eos_token_id": BEGIN, "pad_token_id": None,
}  # fmt: skip
TYPES = ["gpt2", "llama", "qwen2", "qwen3", "mistral", "gpt_neox", "gemma2"]
WHOLE = {"gemma2"}
"""Types that do something behind their last layer, so that all logits are computed."""
TEXTS = ["the cat sat on the mat", "a", "colorless green ideas sleep furiously", "ab"]


def build(kind):
    """A model with weights wide enough that positions and neighbours matter."""
    known = transformers.AutoConfig.for_model(kind)
    names = {*known.to_dict(), *getattr(known, "attribute_map", {})}
    config = transformers.AutoConfig.for_model(kind, **{name: size for name, size in SIZES.items() if name in names})
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    for number, weights in enumerate(model.parameters()):
        if weights.ndim > 1:
            torch.nn.init.normal_(weights, std=0.3, generator=stream(0, "causal", number))
    return model


def letters(*, begin=False):
    """A tokenizer of letters that knows a begin token; if asked it puts it before every text, as Llama's does."""
    words = {letter: number for number, letter in enumerate(LETTERS)} | {"<s>": BEGIN, "<unk>": BEGIN + 1}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="<unk>"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Split(tokenizers.Regex("."), "isolated")
    made.decoder = tokenizers.decoders.Fuse()
    made.add_special_tokens(["<s>"])
    if begin:
        made.post_processor = tokenizers.processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", BEGIN)])
    return made


def saved(kind, directory, *, begin=False):
    """In the hub's layout, with a tokenizer."""
    model = build(kind)
    model.save_pretrained(directory)
    letters(begin=begin).save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>"}))
    return model


def change(directory, **changes):
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@torch.no_grad()
def own_nll(model, tokens):
    """What transformers calls the loss, of all tokens but the first, added up."""
    row = torch.tensor([tokens])
    return float(model.double()(input_ids=row, labels=row).loss) * (len(tokens) - 1)


def numbers(text):
    return [LETTERS.index(letter) for letter in text]


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("begin", [False, True])
def test_bits_per_byte_against_transformers(kind, begin, tmp_path):
    """Unequal texts in one batch, padded; the begin token comes from the tokenizer or is put there."""
    own = saved(kind, tmp_path, begin=begin)
    model = infodis.load(tmp_path)
    assert model.loaded.family == "causal-lm"
    assert model.blocks == BlockLayout(1)
    assert model.pads
    assert model.network.split == (kind not in WHOLE)
    assert model.mask_token >= model.vocab_size
    found = infodis.score(model, TEXTS)
    for text, score in zip(TEXTS, found, strict=True):
        expected = own_nll(own, [BEGIN, *numbers(text)])
        assert score.value == pytest.approx(expected, rel=1e-6)
        assert score.bits_per_byte == pytest.approx(expected / math.log(2) / len(text), rel=1e-6)
        assert sum(score.per_token) == pytest.approx(score.value, rel=1e-9)
        assert (score.standard_error, score.evaluations, score.estimate.stopped) == (0, 1, "exact")


@pytest.mark.parametrize("kind", ["gpt2", "llama", "qwen2", "qwen3"])
def test_a_model_in_memory_against_transformers(kind):
    own = build(kind)
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=letters(), bos_token="<s>")
    own.train()
    model = infodis.load(own, tokenizer=tokenizer, causal=True)
    assert model.loaded.begin_token == BEGIN
    found = infodis.nll(model, TEXTS)
    assert own.training
    assert [one.value for one in found] == pytest.approx(
        [own_nll(own.eval(), [BEGIN, *numbers(text)]) for text in TEXTS], rel=1e-6
    )
    assert infodis.load(own).blocks == BlockLayout(1), "known by its class"


def test_prompts_are_context(tmp_path):
    own = saved("llama", tmp_path)
    model = infodis.load(tmp_path)
    found = infodis.nll(model, "sat", prompt="the cat ")
    whole, before = (own_nll(own, [BEGIN, *numbers(text)]) for text in ("the cat sat", "the cat "))
    head = own_nll(own, numbers("the cat "))
    assert found.value == pytest.approx(own_nll(own, numbers("the cat sat")) - head, rel=1e-5)
    assert infodis.nll(model, "the cat sat").value == pytest.approx(whole, rel=1e-6)
    assert whole - before != pytest.approx(found.value, rel=1e-3), "the begin token is put only where it is needed"


def test_any_causal_module_will_do():
    """A recurrent one that is no model of transformers."""

    class Recurrent(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.head = torch.nn.Embedding(27, 8), torch.nn.Linear(8, 27)
            self.mix = torch.nn.GRU(8, 8, batch_first=True)

        def forward(self, tokens):
            return self.head(self.mix(self.embed(tokens))[0])

    net = Recurrent()
    with pytest.raises(InputError, match="which sees only those before: a causal language model"):
        infodis.load(net, tokenizer="text8", mask_token=0)
    model = infodis.load(net, tokenizer="text8", causal=True)
    found = infodis.nll(model, "at", prompt="the c")
    row = torch.tensor([numbers("the cat")])
    with torch.no_grad():
        costs = -net(row)[0].log_softmax(-1)[[4, 5], row[0, [5, 6]]]
    assert found.value == pytest.approx(float(costs.sum()), rel=1e-6)
    with pytest.raises(InputError, match="It has no begin token: score a text after a prompt"):
        infodis.nll(model, "the cat")
    assert "no begin token" in model.loaded.notes[0]


def test_a_model_that_looks_ahead_is_no_causal_one(tmp_path):
    sizes = {name: value for name, value in SIZES.items() if name != "head_dim"}
    bert = transformers.AutoConfig.for_model("bert", initializer_range=1.0, **sizes)
    masked = transformers.AutoModelForMaskedLM.from_config(bert)
    with pytest.raises(InputError, match="must not see the tokens behind"):
        infodis.load(masked, causal=True)
    transformers.BertLMHeadModel(bert).save_pretrained(tmp_path)
    with pytest.raises(InputError, match="must not see the tokens behind"):
        infodis.load(tmp_path, causal=True)


def test_a_causal_model_that_nobody_knows_needs_a_word(tmp_path):
    own = saved("gpt2", tmp_path)
    change(tmp_path, architectures=["MyOwnLMHeadModel"])
    with pytest.raises(InputError, match="causal=True, or --causal"):
        infodis.load(tmp_path)
    model = infodis.load(tmp_path, causal=True)
    assert model.wiring == {"causal": True, "block_size": 1, "block_origin": "global"}
    assert infodis.nll(model, "the cat").value == pytest.approx(own_nll(own, [BEGIN, *numbers("the cat")]), rel=1e-6)
    change(tmp_path, architectures=["GPT2LMHeadModel"])
    with pytest.raises(InputError, match="block_size must be an option that the model can honour"):
        infodis.load(tmp_path, block_size=4)


@pytest.mark.parametrize(
    ("config", "known"),
    [
        ({"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]}, True),
        ({"model_type": "qwen3", "architectures": ["Qwen3DiffusionModel"]}, False),
        ({"model_type": "qwen3"}, False),
        ({"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "mask_token_id": 151666}, False),
        ({"model_type": "bert", "architectures": ["BertForMaskedLM"]}, False),
    ],
)
def test_diffusion_models_in_the_clothes_of_causal_ones_are_not_taken_for_them(config, known):
    assert recognises(config) == known


def test_a_begin_token_stands_for_no_text(tmp_path):
    """A Llama's configuration says token 1, which is a letter here; the end token stands between texts."""
    saved("llama", tmp_path)
    (tmp_path / "tokenizer_config.json").unlink()
    change(tmp_path, bos_token_id=1)
    assert infodis.load(tmp_path).loaded.begin_token == BEGIN
    change(tmp_path, eos_token_id=[2, 3])
    model = infodis.load(tmp_path)
    assert model.loaded.begin_token is None
    with pytest.raises(InputError, match="no begin token"):
        infodis.nll(model, "the cat")


def test_columns_beyond_the_tokenizer_have_no_probability(tmp_path):
    own = build("llama")
    own.resize_token_embeddings(COLUMNS + 5)
    own.save_pretrained(tmp_path)
    letters().save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>"}))
    model = infodis.load(tmp_path)
    row = torch.tensor([[BEGIN, *numbers("the cat")]])
    with torch.no_grad():
        logits = own(row).logits[0, :-1, :COLUMNS]
    expected = torch.nn.functional.cross_entropy(logits, row[0, 1:], reduction="sum")
    assert infodis.nll(model, "the cat").value == pytest.approx(float(expected), rel=1e-6)


def test_lower_precision_is_close(tmp_path):
    saved("gpt2", tmp_path)
    exact, rough = (infodis.nll(infodis.load(tmp_path, dtype=dtype), TEXTS[0]) for dtype in ("float32", "bfloat16"))
    assert rough.value == pytest.approx(exact.value, rel=0.03)
    assert rough.value != exact.value


def test_the_harness_against_its_own_model(tmp_path):
    """Log-likelihoods, greedy flags and rolling texts as lm-evaluation-harness's own class says them."""
    pytest.importorskip("lm_eval")
    from lm_eval.api.instance import Instance
    from lm_eval.models.huggingface import HFLM

    from infodis.apps.lm_eval.harness import InfodisLM

    saved("gpt2", tmp_path)
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=letters(), bos_token="<s>", eos_token="<s>", pad_token="<s>"
    )
    theirs = HFLM(transformers.AutoModelForCausalLM.from_pretrained(tmp_path), tokenizer=tokenizer, batch_size=2)
    ours = InfodisLM(str(tmp_path), device="cpu", greedy="always")
    pairs = [("the cat", " sat"), ("the cat", " ran away"), ("", "abc"), ("ab", "c"), ("ab", "m")]
    requests = [Instance("loglikelihood", {}, pair, n) for n, pair in enumerate(pairs)]
    mine, own = ours.loglikelihood(requests, True), theirs.loglikelihood(requests, True)
    assert [one[0] for one in mine] == pytest.approx([one[0] for one in own], rel=1e-5)
    assert [one[1] for one in mine] == [bool(one[1]) for one in own]
    rolling = [Instance("loglikelihood_rolling", {}, (text,), n) for n, text in enumerate(TEXTS)]
    assert ours.loglikelihood_rolling(rolling, True) == pytest.approx(
        theirs.loglikelihood_rolling(rolling, True), rel=1e-5
    )


@pytest.mark.parametrize("kind", ["gpt2", "llama", "gemma2"])
def test_what_is_written_against_transformers(kind, tmp_path):
    """Greedy texts after prompts of unequal length, side by side; cut at a stop text, which ends the row."""
    pytest.importorskip("lm_eval")
    from lm_eval.api.instance import Instance

    from infodis.apps.lm_eval.harness import InfodisLM

    own = saved(kind, tmp_path).float()
    ours = InfodisLM(str(tmp_path), device="cpu")
    assert ours.model.network.resumes == (kind not in WHOLE)
    prompts = ["the cat ", "a", "colorless green ideas ", "the dog "]
    expected = []
    for prompt in prompts:
        row = torch.tensor([numbers(prompt)])
        written = own.generate(
            row, attention_mask=torch.ones_like(row), max_new_tokens=12, do_sample=False, pad_token_id=BEGIN
        )[0, row.shape[1] :].tolist()
        written = written[: written.index(BEGIN)] if BEGIN in written else written
        expected.append("".join(letters().id_to_token(token) for token in written))
    longest = max(expected, key=len)
    assert len(longest) > 5, "or nothing would be left to stop"
    for until in ([], [longest[2:4]], ["no such text"]):
        arguments = {"max_gen_toks": 12, "until": until, "do_sample": False}
        asked = [
            Instance("generate_until", {}, (prompt, arguments), 0, ("t", n, 1)) for n, prompt in enumerate(prompts)
        ]
        found = ours.generate_until(asked, True)
        assert found == [text.split(until[0])[0] if until else text for text in expected]
