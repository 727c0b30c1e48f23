"""Options that say what a model is where its files do not: blocks, the mask token, whether it is causal."""

from pathlib import Path

import pytest

import infodis
from infodis.blocks import BlockLayout
from infodis.errors import InputError
from infodis.models.adapters import FAMILIES
from infodis.models.options import WIRING, ModelOptions

REFERENCES = Path(__file__).parents[1] / "references"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"block_size": -1}, "block_size must be a whole number and at least 0, got -1"),
        ({"block_size": 0, "block_origin": "global"}, "has no blocks to count"),
        ({"mask_token": -1}, "mask_token must be a whole number and at least 0"),
        ({"block_origin": "prompt"}, "block_origin is one of global, response"),
        ({"causal": True, "block_size": 4}, "got block_size too"),
        ({"causal": True, "mask_token": 4}, "got mask_token too"),
    ],
)
def test_options_are_checked(options, words):
    with pytest.raises(InputError, match=words):
        ModelOptions(**options)


def test_what_the_user_says_comes_before_the_configuration():
    assert ModelOptions().block_layout(16) == BlockLayout(16, "global")
    assert ModelOptions(block_size=4, block_origin="response").block_layout(16) == BlockLayout(4, "response")
    with pytest.raises(InputError, match="does not say how long a block is"):
        ModelOptions().block_layout(None)
    with pytest.raises(InputError, match="got block_size 0"):
        ModelOptions(block_size=0).block_layout(16)
    assert ModelOptions(block_size=0).wiring == {"block_size": 0}


@pytest.mark.parametrize("name", ["llada", "dream", "mdlm", "radd", "sedd-absorb"])
@pytest.mark.parametrize("option", [{"block_size": 4}, {"block_origin": "response"}, {"causal": True}])
def test_an_option_that_a_model_cannot_honour_is_refused(name, option):
    with pytest.raises(InputError, match=f"{next(iter(option))} must be an option that the model can honour"):
        infodis.load(REFERENCES / name, **option)


def test_families_name_options_that_exist():
    assert all(set(family.HONOURS) <= set(WIRING) for family in FAMILIES)


@pytest.mark.parametrize("name", ["llada", "dream"])
def test_another_mask_token_is_used_and_told(name):
    plain, other = infodis.load(REFERENCES / name), infodis.load(REFERENCES / name, mask_token=7)
    assert (plain.mask_token, other.mask_token) == (36, 7)
    assert (plain.wiring, other.wiring) == ({}, {"mask_token": 7})
