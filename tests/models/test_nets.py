"""Networks: equal to the public ones for the same weights, and predictors by the rules of the protocol."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from infodis.errors import InputError
from infodis.models import checkpoint
from infodis.models.nets import RADD, SEDD, SIZES, NetworkShape, initialise
from infodis.models.nets.transformer import attention
from infodis.predictor import Predictor, check_log_conditionals, gather_surprisal
from infodis.rng import stream

REFERENCES = Path(__file__).parents[1] / "references"
SMALL = NetworkShape(width=24, blocks=2, heads=3)


@pytest.mark.parametrize("name", ["radd", "sedd-absorb", "sedd-uniform"])
@torch.no_grad()
def test_public_checkpoints_against_peer(name):
    """Recorded from the public code by references/record.py, configurations in the layout of the hub."""
    network, spec = checkpoint.load(REFERENCES / name)
    answer = load_file(REFERENCES / name / "answer.safetensors")
    given = (answer["tokens"],) if spec.network == "radd" else (answer["tokens"], answer["sigma"])
    found = network(*given)
    if spec.network == "radd":
        check_log_conditionals(found, torch.ones_like(answer["tokens"], dtype=torch.bool), vocab_size=11)
    torch.testing.assert_close(found, answer["output"], atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_a_wrong_rotation_would_be_seen(monkeypatch):
    """Negative control: positions turned the other way round must not reproduce the recorded answer."""
    import infodis.models.nets.radd as module

    right = module.rotation
    monkeypatch.setattr(module, "rotation", lambda *a, **k: (right(*a, **k)[0], right(*a, **k)[1].flip(-2)))
    network, _ = checkpoint.load(REFERENCES / "radd")
    answer = load_file(REFERENCES / "radd" / "answer.safetensors")
    assert (network(answer["tokens"]) - answer["output"]).abs().max() > 1e-2


def made(seed: int = 0) -> RADD:
    network = RADD(7, SMALL)
    initialise(network, generator=stream(seed))
    with torch.no_grad():
        network.output_layer.linear.weight.normal_(generator=stream(1))
    return network.eval()


@torch.no_grad()
def test_surprisal_at_masked_positions_equals_gathering():
    network = made()
    assert isinstance(network, Predictor)
    tokens = torch.randint(7, (5, 11), generator=stream(2))
    masked = torch.rand(5, 11, generator=stream(3)) < 0.4
    masked[0] = False
    plain = gather_surprisal(network(torch.where(masked, 7, tokens)), tokens, masked, vocab_size=7)
    torch.testing.assert_close(network.surprisal(tokens, masked), plain)


@torch.no_grad()
def test_absorbing_scores_are_conditionals():
    """Scores at the noise of the row's share of masks, normalised; a predictor by the rules of the protocol."""
    network = SEDD(7, SMALL)
    initialise(network, generator=stream(0))
    network.output_layer.linear.weight.normal_(generator=stream(1))
    network.eval()
    tokens = torch.randint(7, (3, 9), generator=stream(2))
    masked = torch.rand(3, 9, generator=stream(3)) < 0.5
    masked[0] = True
    rows = torch.where(masked, 7, tokens)
    found = network.log_conditionals(rows)
    check_log_conditionals(found, masked, vocab_size=7)
    level = masked.float().mean(-1).clamp(max=0.999)
    scores = network(rows, -torch.log1p(-level))[..., :7]
    torch.testing.assert_close(found[masked], scores.log_softmax(-1)[masked])
    plain = gather_surprisal(found, tokens, masked, vocab_size=7)
    torch.testing.assert_close(network.surprisal(tokens, masked), plain)


@torch.no_grad()
def test_what_is_masked_cannot_be_seen():
    network = made()
    tokens = torch.randint(7, (1, 9), generator=stream(2))
    other = tokens.clone()
    other[0, 4] = (other[0, 4] + 1) % 7
    masked = torch.zeros(1, 9, dtype=torch.bool)
    masked[0, [1, 4]] = True
    assert network.surprisal(tokens, masked)[0, 1] == network.surprisal(other, masked)[0, 1]
    visible = masked.clone()
    visible[0, 4] = False
    assert network.surprisal(tokens, visible)[0, 1] != network.surprisal(other, visible)[0, 1]


def test_a_seed_decides_on_all_weights():
    one, two, three = made(0), made(0), made(1)
    for a, b in zip(one.parameters(), two.parameters(), strict=True):
        assert torch.equal(a, b)
    assert not torch.equal(one.vocab_embed.embedding, three.vocab_embed.embedding)


@torch.no_grad()
def test_a_fresh_network_knows_nothing():
    network = RADD(5, SMALL)
    initialise(network, generator=stream(0))
    torch.testing.assert_close(
        network(torch.zeros(1, 3, dtype=torch.int64)), torch.full((1, 3, 5), -torch.log(torch.tensor(5.0)))
    )


def test_named_sizes_have_the_parameters_of_the_papers():
    """The RADD paper gives 162 M and 405 M, with the vocabulary of GPT-2."""
    with torch.device("meta"):
        sizes = {name: sum(p.numel() for p in RADD(50257, shape).parameters()) for name, shape in SIZES.items()}
    assert 1.60e8 < sizes["small"] < 1.64e8
    assert 4.00e8 < sizes["medium"] < 4.10e8


COMPILE = """
import torch
from infodis.models.nets import RADD, SEDD, NetworkShape, initialise
from infodis.models.nets.llama import Llama, LlamaShape
from infodis.rng import stream

tokens, sigma = torch.zeros(2, 4, dtype=torch.int64), torch.ones(2)
for network, given in ((RADD(5, NetworkShape(8, 1, 2)), (tokens,)), (SEDD(5, NetworkShape(8, 1, 2)), (tokens, sigma))):
    initialise(network, generator=stream(0))
    torch.nn.init.normal_(network.output_layer.linear.weight, generator=stream(1))  # or every answer would be the same
    compiled = torch.compile(network, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(*given), network(*given))
    masked = torch.tensor([[True, False, True, True], [False, False, True, False]])
    surprisal = torch.compile(network.surprisal, backend="eager")
    torch.testing.assert_close(surprisal(tokens, masked), network.surprisal(tokens, masked))

llama = Llama(LlamaShape(6, 8, 1, 2, 1, 12, 1e4, 1e-5), mask_token=5, tokens=6)
features = torch.compile(llama.features, dynamic=True, backend="eager")
torch.testing.assert_close(features(tokens, at=masked), llama.features(tokens, at=masked))
"""


@pytest.mark.slow
def test_forward_passes_compile_whole():
    """In a process of its own, without the type checks of the tests, which a compiler cannot follow."""
    done = subprocess.run([sys.executable, "-c", COMPILE], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


def test_bad_shapes_are_told():
    with pytest.raises(InputError, match="multiple of 2 x heads = 6"):
        NetworkShape(width=10, blocks=1, heads=3)
    with pytest.raises(InputError, match="positive sizes"):
        NetworkShape(width=8, blocks=0, heads=2)


def test_bad_checkpoints_are_told(tmp_path):
    network = made()
    spec = checkpoint.Spec("radd", 7, SMALL, 9)
    checkpoint.save(tmp_path, spec, network.state_dict())
    loaded, found = checkpoint.load(tmp_path)
    assert found == spec
    assert torch.equal(loaded.vocab_embed.embedding, network.vocab_embed.embedding)
    weights = dict(network.state_dict())
    weights["vocab_embed.embedding"] = weights["vocab_embed.embedding"][:-1].clone()
    checkpoint.save(tmp_path, spec, weights)
    with pytest.raises(InputError, match=r"vocab_embed.embedding has shape \(7, 24\), expected \(8, 24\)"):
        checkpoint.load(tmp_path)
    weights["vocab_embed.embedding"] = torch.full((8, 24), torch.nan)
    checkpoint.save(tmp_path, spec, weights)
    with pytest.raises(InputError, match="NaN or inf"):
        checkpoint.load(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"cut off")
    with pytest.raises(InputError, match="cannot be read"):
        checkpoint.load(tmp_path)
    (tmp_path / "config.json").write_text('{"architectures": ["BertForMaskedLM"]}')
    with pytest.raises(InputError, match="neither an infodis checkpoint"):
        checkpoint.load(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(InputError, match="must hold JSON"):
        checkpoint.load(tmp_path)
    for content in ("[]", '{"format": "infodis-1", "network": "radd"}', '{"tokens": 5, "model": {}}'):
        (tmp_path / "config.json").write_text(content)
        with pytest.raises(InputError, match=r"lacks a key|must hold an object"):
            checkpoint.load(tmp_path)
    wrong = spec.to_json() | {"network": "gpt"}
    (tmp_path / "config.json").write_text(json.dumps(wrong))
    with pytest.raises(InputError, match="network is one of radd, sedd; got 'gpt'"):
        checkpoint.load(tmp_path)


@pytest.mark.parametrize("masked", [True, False])
def test_attention_in_training_against_fused(masked):
    """Plain products in bfloat16 are what PyTorch's fused attention computes, to the rounding of scores."""
    drawn = [torch.randn(2, 3, 9, 16, generator=stream(0, "attention", n)) for n in range(3)]
    parts = [part.bfloat16() for part in drawn]
    seen = torch.ones(1, 1, 9, 9, dtype=torch.bool).tril() if masked else None
    exact = attention(*drawn, seen)
    plain, fused = (attention(*parts, seen, training=training).float() for training in (True, False))
    assert plain.shape == exact.shape
    assert not torch.equal(plain, fused)  # it is another computation
    assert (plain - exact).abs().max() < 3 * (fused - exact).abs().max() + 0.01
    assert torch.equal(attention(*drawn, seen, training=True), exact)  # other types stay with the fused one
