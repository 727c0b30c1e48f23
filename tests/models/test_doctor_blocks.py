"""The doctor on models of blocks and causal ones: right wirings pass, each wrong one is found and named.

Verdicts by data need 4 standard errors on known tokens: a false alarm in 30,000.
"""

import dataclasses

import pytest
import torch
from test_block_families import OPTIONS, RECORDED, REFERENCES, SIZE
from test_block_families import backbone as backbone
from typer.testing import CliRunner

import infodis
from infodis.blocks import BlockLayout
from infodis.cli import app
from infodis.models.doctor import ModelUnderTest, doctor, examine, with_examples
from infodis.models.doctor.block_checks import _by_halves, block_origin, block_size
from infodis.models.doctor.checks import CHECKS
from infodis.models.doctor.wirings import halves, rewired
from infodis.models.nets import RADD
from infodis.oracle import MarkovChain
from infodis.rng import stream
from infodis.testing import Blockwise

ENGLISH = """
the city lies on both sides of the river and was founded in the middle of the twelfth century by a group of merchants
who came from the coast it grew slowly until the railway was built in eighteen fifty four and then became one of the
most important centres of trade in the north of the country the old town was almost completely destroyed by a great
fire but the church of saint mary and parts of the city wall are still standing today the university is one of the
oldest in the world and has more than twenty thousand students the water of the river is used to produce electric power
and the main products of the region are paper glass and machines in the first half of the nineteenth century the number
of people who lived there was less than ten thousand but after the war it increased to about two hundred thousand most
of the population speak german or french and the majority of them are members of the catholic church the winters are
cold and long and the summers are short and warm the government of the state has its seat in the capital and is elected
every four years by the people who are over the age of eighteen the king was born in london and became the head of the
army when his father died he was married to the daughter of the emperor and had three sons and two daughters the first
of these was later known as the duke of york his book about the history of the roman empire was published in nineteen
thirty two and has been translated into many other languages it is a theory of how the structure of a society is related
to the language that is used by its members and it had a strong influence on the work of other writers of the same time
"""
"""Of the kind that text8 models know."""


@pytest.fixture(scope="module")
def block4():
    return infodis.load("text8-block4")


@pytest.fixture(scope="module")
def causal():
    return infodis.load("text8-causal")


def known(model, characters: int | None = None) -> ModelUnderTest:
    return with_examples(model, [" ".join(ENGLISH.split())[:characters]])


def verdicts(found):
    return {one.check: one.verdict for one in found}


def test_right_wirings_pass(block4, causal):
    """With the examples that the doctor brings along."""
    found = {one.check: one for one in doctor(block4)}
    assert verdicts(found.values()) == dict.fromkeys(CHECKS, "ok") | {"mask token": "cannot tell"}
    found = {one.check: one for one in doctor(causal)}
    left_out = dict.fromkeys(("mask token", "mask rates", "block origin"), "left out")
    assert verdicts(found.values()) == dict.fromkeys(CHECKS, "ok") | left_out
    assert found["mask token"].detail == "an autoregressive model masks nothing"


@pytest.fixture(scope="module")
def told(block4):
    """What halves of blocks of 2, 4 and 8 tell about each other: the same whichever size is in use."""
    return halves(known(block4))


def test_a_right_block_size_is_known_to_be_right(told):
    found = _by_halves(4, told, {})
    assert found.verdict == "ok"
    assert "blocks of 4" in found.detail
    assert "blocks of 8" in found.detail


@pytest.mark.parametrize("size", [2, 8, 16])
def test_a_wrong_block_size_is_found(told, size):
    found = _by_halves(size, told, {})
    assert found.verdict == "wrong"
    assert found.hint == "Load it with --block-size 4 (block_size=4), or put that into its config.json."


def test_a_block_model_that_is_run_as_a_full_one_is_found(block4):
    found = block_size(known(rewired(block4, None)))
    assert found.verdict == "wrong"
    assert "--block-size 4 (block_size=4)" in found.hint
    assert "run as a model that sees a row at once" in found.detail


@pytest.mark.slow
def test_a_model_that_sees_a_row_at_once_in_blocks_is_found():
    found = block_size(known(rewired(infodis.load("text8-tiny"), BlockLayout(4)), 640))
    assert found.verdict == "wrong"
    assert "--block-size 0" in found.hint


def test_a_causal_model_in_blocks_is_found(causal):
    found = block_size(known(rewired(causal, BlockLayout(4))))
    assert found.verdict == "wrong"
    assert "--causal" in found.hint
    assert "--block-size 1" in found.hint


def test_a_wrong_origin_is_found(block4):
    found = block_origin(known(rewired(block4, BlockLayout(4, "response")), 960))  # the right one passes: see above
    assert found.verdict == "wrong"
    assert found.hint == 'Load it with --block-origin global (block_origin="global").'


class Aside(RADD):
    """Outputs so many positions behind the token that they are about."""

    by = 0

    def block_features(self, *rows, at=None, **more):
        found = super().block_features(*rows, **more).roll(self.by, 1)
        return found if at is None else found[at]

    def _causal_features(self, tokens, at):
        found = super()._causal_features(tokens, None).roll(self.by, 1)
        return found if at is None else found[at]


def aside(model, by: int):
    network = Aside(model.network.vocab_size, model.network.shape).eval()
    network.load_state_dict(model.network.state_dict())
    network.by, network.resumes = by, not network.causal  # pieces of a text would be moved each by itself
    return dataclasses.replace(model, loaded=dataclasses.replace(model.loaded, network=network))


@pytest.mark.parametrize(("by", "said"), [(0, ""), (-1, "one position before"), (1, "one position after")])
@pytest.mark.parametrize("name", ["text8-block4", "text8-causal"])
def test_a_missing_shift_and_one_too_many_are_found(name, by, said):
    """-1: logits at a position are about the next one, and are read as if they were about their own."""
    found = CHECKS["alignment"](with_examples(aside(infodis.load(name), by)))
    assert found.verdict == ("wrong" if said else "ok")
    assert said in found.detail
    assert by != -1 or "Shift the logits by one" in found.hint
    assert by != 1 or "leave --causal out" in found.hint


class Logits(torch.nn.Module):
    """A causal network as a module from tokens to logits: about the next position, or about their own."""

    def __init__(self, network, *, about_next):
        super().__init__()
        self.network, self.about_next = network, about_next

    def forward(self, input_ids):
        behind = torch.cat([input_ids, input_ids[:, -1:]], 1)
        found = self.network.logits(self.network.features(behind))
        return found[:, 1:] if self.about_next else found[:, :-1]


@pytest.mark.parametrize("about_next", [True, False])
def test_logits_that_are_shifted_twice_are_found(causal, about_next):
    """A module that answers about its own position already, loaded as one that answers about the next."""
    model = infodis.load(Logits(causal.network, about_next=about_next), causal=True, tokenizer="text8", vocab_size=27)
    found = CHECKS["alignment"](ModelUnderTest(model, with_examples(causal).rows))
    assert found.verdict == ("ok" if about_next else "wrong")
    assert about_next or "leave --causal out" in found.hint


@pytest.mark.parametrize("name", RECORDED)
@pytest.mark.parametrize("origin", ["global", "response"])
def test_tiny_models_of_all_families_pass(name, origin):
    """Random weights: there is nothing to know, and nothing wrong."""
    model = infodis.load(REFERENCES / name, block_origin=origin, **RECORDED[name])
    found = {one.check: one for one in doctor(model)}
    assert not [one for one in found.values() if one.verdict == "wrong"]
    assert found["distributions"].verdict == found["secrecy"].verdict == found["padding"].verdict == "ok"
    assert found["probability of the mask"].verdict == "ok"
    rates = found["mask rates"]
    assert (rates.verdict == "cannot tell") == (name == "llada2")
    if name == "llada2":
        assert "30 to 80 % of a block" in rates.detail
        assert "50 % of a likelihood" in rates.detail  # one and four of four masked tokens
        assert "off its training distribution" in rates.detail


def test_tiny_models_with_tokenizers_pass(backbone):
    """Their tokenizers name the mask."""
    name, directory, _ = backbone
    model = infodis.load(directory, **OPTIONS.get(name, {"block_size": SIZE}))
    words = torch.randint(1, 36, (4, 20), generator=stream(0, "words"))
    found = {one.check: one for one in doctor(model, [" ".join(f"w{n}" for n in row) for row in words.tolist()])}
    begins = model.network.first_predicted == 0 or model.loaded.begin_token is not None
    wrong = [name for name, one in found.items() if one.verdict == "wrong"]
    assert wrong == ([] if begins else ["special tokens"])
    assert found["mask token"].verdict == "ok"
    assert found["block size"].verdict == found["alignment"].verdict == "cannot tell"


def test_a_wrong_mask_token_of_a_block_model_is_found(backbone):
    name, directory, _ = backbone
    model = infodis.load(directory, mask_token=7, **OPTIONS.get(name, {"block_size": SIZE}))
    words = torch.randint(8, 36, (2, 12), generator=stream(0, "words"))
    found = CHECKS["mask token"](with_examples(model, [" ".join(f"w{n}" for n in row) for row in words.tolist()]))
    assert found.verdict == "wrong"
    assert "--mask-token 36" in found.hint


def test_the_first_token_of_a_shifted_block_is_not_looked_ahead_at():
    """Fast-dLLM v2 predicts it from the block before. That is no sign of smaller blocks: it comes first either way."""
    model = infodis.load(REFERENCES / "fast-dllm-v2", **RECORDED["fast-dllm-v2"])
    rows = list(torch.randint(36, (3, 13), generator=stream(0, "shifted")))
    found = halves(ModelUnderTest(model, rows))
    assert [one.size for one in found] == [4, 8]
    exact = []
    for row in rows:  # of the second block: token 5 given token 4, before and after tokens 6 and 7 are known
        hidden = torch.zeros(2, 8, dtype=torch.bool)
        hidden[0, 5:], hidden[1, 5] = True, True
        costs = model.surprisal(row[:8].expand(2, -1), hidden)[:, 5]
        exact.append(float(costs[0] - costs[1]))
    torch.testing.assert_close(found[0].ahead[::2], torch.tensor(exact).double(), atol=1e-4, rtol=1e-4)


def test_an_oracle_in_blocks_passes():
    """A predictor that is no network. Its blocks are what it says they are."""
    chain = MarkovChain.random(order=1, vocab_size=6, temperature=0.15)
    rows = list(chain.sample(12, length=24, generator=stream(0)))
    found = {one.check: one for one in examine(ModelUnderTest(Blockwise(chain, BlockLayout(4)), rows))}
    assert not [one for one in found.values() if one.verdict == "wrong"]
    assert found["alignment"].verdict == found["secrecy"].verdict == "ok"
    assert found["block size"].verdict == "left out"


def test_command_takes_the_options():
    asked = ["doctor", str(REFERENCES / "llada2"), "--block-size", "4", "--block-origin", "response"]
    done = CliRunner().invoke(app, [*asked, "--mask-token", "36"])
    assert done.exit_code == 0, done.output
    assert "30 to 80 %" in done.output
    assert "how long a block is" not in done.output
