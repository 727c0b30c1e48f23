"""Block diffusion models as people have them, against their public code, recorded; and against a plain loop."""

import itertools
import json
import math
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import infodis
from infodis.auto import Blocks
from infodis.design import Enumerate
from infodis.errors import InputError

REFERENCES = Path(__file__).parents[1] / "references"
SIZE, START = 4, 5
"""Of blocks, and where a response begins, in the recordings."""

GIVEN = {"block_size": SIZE, "mask_token": 36}
RECORDED = {"bd3lm": {}, "sdar": GIVEN, "a2d-qwen3": GIVEN, "llada2": GIVEN, "fast-dllm-v2": {"mask_token": 36}}
"""Tiny models with random weights that went through the public network, and what their files do not say.

bd3lm: kuleshov-group/bd3lms (models/hf). sdar: JetAstra/SDAR (training/model/SDAR-8B-Chat). a2d-qwen3, llada2:
ZHZisZZ/dllm. fast-dllm-v2: the files of Efficient-Large-Model/Fast_dLLM_v2_7B. All but the last were run on rows
[noisy ; clean] with the mask of BD3-LM, blocks counted from the row's first token and from the sixth; Fast-dLLM as its
own sampler runs it: the finished blocks into a cache, the first token of a block from the last finished one.
"""


def blocks_from(start: int, length: int, size: int = SIZE) -> torch.Tensor:
    return (torch.arange(length) - start).div(size, rounding_mode="floor")


def allowed(logits: torch.Tensor, mask_token: int) -> torch.Tensor:
    """Log-probabilities with the mask at zero probability and the rest renormalised."""
    logits = logits.float().clone()
    logits[..., mask_token] = -math.inf
    return logits.log_softmax(-1)


@pytest.mark.parametrize("origin", ["global", "response"])
@pytest.mark.parametrize("name", RECORDED)
@torch.no_grad()
def test_networks_against_peer(name, origin):
    answer = load_file(REFERENCES / name / "answer.safetensors")
    if f"{origin}_noisy" not in answer:
        pytest.skip("its own sampler counts blocks from the first token only")
    model = infodis.load(REFERENCES / name, **RECORDED[name])
    noisy, clean, network = answer[f"{origin}_noisy"], answer["tokens"][None], model.network
    blocks = blocks_from(START if origin == "response" else 0, clean.shape[1])[None]
    states = network.encode(clean, blocks=blocks)
    features = network.block_features(noisy, states, owner=torch.zeros(len(noisy), dtype=torch.int64), blocks=blocks)
    found = network.logits(features).float().log_softmax(-1)
    expected = allowed(answer[f"{origin}_output"], model.mask_token)[..., : model.vocab_size]
    first = network.first_predicted
    torch.testing.assert_close(found[:, first:], expected[:, first:], atol=1e-4, rtol=1e-5)
    assert first == (name in ("bd3lm", "fast-dllm-v2"))


@torch.no_grad()
def test_a_model_of_both_kinds_that_sees_a_row_at_once_against_peer():
    """A2D by MDLM: the same files, without blocks."""
    answer = load_file(REFERENCES / "a2d-qwen3" / "answer.safetensors")
    model = infodis.load(REFERENCES / "a2d-qwen3", block_size=0, mask_token=36)
    assert model.blocks is None
    found = model.network.log_conditionals(answer["full_noisy"])
    torch.testing.assert_close(found, allowed(answer["full_output"], 36), atol=1e-4, rtol=1e-5)


@torch.no_grad()
def test_llada_with_experts_against_peer(tmp_path):
    """LLaDA-MoE has no blocks; recorded from ZHZisZZ/dllm. Its model_type is that of LLaDA."""
    answer = load_file(REFERENCES / "llada-moe" / "answer.safetensors")
    model = infodis.load(REFERENCES / "llada-moe", mask_token=36)
    assert (model.blocks, model.loaded.family) == (None, "llada-moe")
    found = model.network.log_conditionals(answer["tokens"])
    torch.testing.assert_close(found, allowed(answer["output"], 36), atol=1e-4, rtol=1e-5)
    with pytest.raises(InputError, match="does not know: moe_layer_freq"):
        infodis.load(changed(tmp_path, "llada-moe", moe_layer_freq=[0, 1]), mask_token=36)


@pytest.mark.parametrize("name", RECORDED)
def test_a_block_model_is_never_run_as_a_full_one(name):
    """Negative control: the numbers would look well, and differ from the recorded ones by far."""
    model = infodis.load(REFERENCES / name, **RECORDED[name])
    noisy = load_file(REFERENCES / name / "answer.safetensors")["global_noisy"]
    with pytest.raises(InputError, match="needs the clean text beside a masked row"):
        model.network.log_conditionals(noisy)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("sdar", {"mask_token": 36}, "does not say how long a block is. Give block_size="),
        ("sdar", {"block_size": 4}, r"Give mask_token=\.\.\."),
        ("sdar", {"block_size": 0, "mask_token": 36}, "got block_size 0"),
        ("sdar", {"block_size": 4, "mask_token": 99}, "The mask token 99"),
        ("llada2", {"mask_token": 36}, "does not say how long a block is"),
        ("llada2", {"block_size": 4}, "Something must say which token is the mask"),
        ("a2d-qwen3", {"mask_token": 36}, "Give block_size=0 .* or the size of a block"),
        ("fast-dllm-v2", {}, "Something must say which token is the mask"),
        ("bd3lm", {"block_size": 8}, "block_size must be an option that the model can honour"),
        ("bd3lm", {"mask_token": 8}, "mask_token must be an option that the model can honour"),
    ],
)
def test_what_files_do_not_say_is_asked_for(name, options, message):
    with pytest.raises(InputError, match=message):
        infodis.load(REFERENCES / name, **options)


def changed(tmp_path: Path, name: str, **changes) -> Path:
    """A copy of a recorded model with another configuration; None takes a key out."""
    directory = tmp_path / f"{name}-{len(list(tmp_path.iterdir()))}"
    shutil.copytree(REFERENCES / name, directory)
    config = json.loads((directory / "config.json").read_text()) | changes
    kept = {key: value for key, value in config.items() if value is not None}
    (directory / "config.json").write_text(json.dumps(kept))
    return directory


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("bd3lm", {"time_conditioning": True}, "does not know: time_conditioning = True"),
        ("bd3lm", {"block_size": None}, "lacks block_size"),
        ("bd3lm", {"block_size": 1}, "must have at least 2 tokens"),
        ("bd3lm", {"n_blocks": 3}, "lacks weights"),
        ("sdar", {"attention_bias": True}, "does not know: attention_bias = True"),
        ("sdar", {"rope_scaling": {"rope_type": "yarn"}}, "stretches them"),
        ("sdar", {"rope_theta": None}, "lacks rope_theta"),
        ("sdar", {"head_dim": 7}, "even part of each head"),
        ("a2d-qwen3", {"model_type": "a2d-mystery"}, "must be one of a2d-llama, a2d-qwen2, a2d-qwen3"),
        ("a2d-qwen3", {"tie_word_embeddings": False}, "lacks weights: head.weight"),
        ("llada2", {"score_function": "softmax"}, "does not know: score_function = 'softmax'"),
        ("llada2", {"n_group": 3}, "groups of equal size"),
        ("llada2", {"num_experts_per_tok": 5}, "choose among those it keeps"),
        ("llada2", {"first_k_dense_replace": 0}, "is not part of the network"),
    ],
)
def test_other_networks_are_refused(tmp_path, name, changes, message):
    with pytest.raises(InputError, match=message):
        infodis.load(changed(tmp_path, name, **changes), **RECORDED[name])


@pytest.mark.parametrize("trust", [False, True])
def test_block_models_of_unknown_families_are_refused(tmp_path, trust):
    """Nemotron-Labs-Diffusion is one: the generic adapter would run it as a model that sees a row at once."""
    pytest.importorskip("transformers")
    config = {"model_type": "nemotron_labs_diffusion", "architectures": ["NemotronLabsDiffusionModel"]}
    config |= {"auto_map": {"AutoModel": "modeling.Model"}, "block_size": 32, "mask_token_id": 100}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match="must be of a family that infodis knows"):
        infodis.load(tmp_path, trust_remote_code=trust)


def test_the_configuration_may_say_what_options_do(tmp_path):
    directory = changed(tmp_path, "sdar", block_size=8, mask_token_id=36)
    assert infodis.load(directory).blocks.size == 8
    assert infodis.load(directory, block_size=4, block_origin="response").blocks == infodis.blocks.BlockLayout(
        4, "response"
    )
    theta = {"rope_theta": None, "rope_parameters": {"rope_theta": 1000000, "rope_type": "default"}}
    recent = infodis.load(changed(tmp_path, "sdar", **theta), **GIVEN)
    assert recent.network.shape == infodis.load(REFERENCES / "sdar", **GIVEN).network.shape


def test_an_embedding_that_is_the_last_layer_too(tmp_path):
    """A2D's is tied. A head beside it that differs contradicts the configuration."""
    model = infodis.load(REFERENCES / "a2d-qwen3", **GIVEN)
    assert model.network.head.weight is model.network.embed.weight
    directory = changed(tmp_path, "a2d-qwen3")
    shard = directory / "model-00001-of-00002.safetensors"
    weights = load_file(shard)
    other = weights["model.embed_tokens.weight"] + 1
    save_file(weights | {"lm_head.weight": other}, shard)
    with pytest.raises(InputError, match="its lm_head is not its embedding"):
        infodis.load(directory, **GIVEN)
    config = json.loads((directory / "config.json").read_text()) | {"tie_word_embeddings": False}
    (directory / "config.json").write_text(json.dumps(config))
    assert torch.equal(infodis.load(directory, **GIVEN).network.head.weight, other)


def test_a_tied_embedding_under_a_name_of_its_own(tmp_path):
    """LLaDA 2 calls its embedding otherwise; a tied one has no head in its files."""
    directory = changed(tmp_path, "llada2", tie_word_embeddings=True)
    for shard in directory.glob("model*.safetensors"):
        save_file({key: tensor for key, tensor in load_file(shard).items() if key != "lm_head.weight"}, shard)
    network = infodis.load(directory, **GIVEN).network
    assert network.head.weight is network.embed.weight


SIZES = {
    "vocab_size": 44,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "rope_theta": 1e6,
    "bos_token_id": 1,
}
EXPERTS = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 12, "norm_topk_prob": True}
OF_TRANSFORMERS = {
    "sdar": ("Qwen3", {"head_dim": 16}, {"model_type": "sdar"}),
    "sdar_moe": ("Qwen3Moe", {"head_dim": 16, **EXPERTS}, {"model_type": "sdar_moe", **EXPERTS}),
    "a2d-qwen3": ("Qwen3", {"head_dim": 16, "tie_word_embeddings": True}, {"model_type": "a2d-qwen3"}),
    "a2d-qwen2": ("Qwen2", {"tie_word_embeddings": True}, {"model_type": "a2d-qwen2"}),
    "a2d-llama": ("Llama", {}, {"model_type": "a2d-llama"}),
    "fast-dllm": ("Qwen2", {}, {"model_type": "Fast_dLLM_Qwen", "bd_size": SIZE}),
}
"""Backbones that transformers has, their sizes, and what the configuration of the block model says in their place."""

PIECES = {"sdar": "<|MASK|>", "sdar_moe": "<|MASK|>", "fast-dllm": "|<MASK>|"}
"""What the mask is called in the tokenizers of these families; in A2D's it is <|mask|>."""


@pytest.fixture(scope="module", params=OF_TRANSFORMERS)
def backbone(request, tmp_path_factory):
    """A tiny model in the hub's layout (shards, a tokenizer that names the mask), and its backbone by transformers."""
    transformers, tokenizers = pytest.importorskip("transformers"), pytest.importorskip("tokenizers")
    kind, sizes, changes = OF_TRANSFORMERS[request.param]
    network = getattr(transformers, f"{kind}ForCausalLM")(
        getattr(transformers, f"{kind}Config")(**SIZES, **sizes, attn_implementation="eager")
    )
    for number, (name, parameter) in enumerate(sorted(network.named_parameters())):
        torch.nn.init.normal_(parameter, std=0.3, generator=torch.Generator().manual_seed(number))
        parameter.data += "norm" in name
    directory = tmp_path_factory.mktemp(request.param)
    network.eval().save_pretrained(directory, max_shard_size="40KB")
    assert len(list(directory.glob("*.safetensors"))) > 1
    config = json.loads((directory / "config.json").read_text()) | changes
    (directory / "config.json").write_text(json.dumps(config))
    words = {f"w{n}": n for n in range(36)} | {PIECES.get(request.param, "<|mask|>"): 36}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="w0"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    made.save(str(directory / "tokenizer.json"))
    return request.param, directory, network


@torch.no_grad()
def conditionals(network, noisy, clean, blocks, *, shifted=False):
    """Log-probabilities at every position by transformers' own backbone, on one row [noisy ; clean] with a 4-D mask."""
    same, before, upto = (compare(blocks[:, None], blocks[None]) for compare in (torch.eq, torch.gt, torch.ge))
    seen = torch.cat([torch.cat([same, before], 1), torch.cat([torch.zeros_like(same), upto], 1)])
    additive = torch.zeros(seen.shape).masked_fill(~seen, torch.finfo(torch.float32).min)[None, None]
    positions = torch.arange(len(clean)).repeat(2)[None]
    output = network(torch.cat([noisy, clean])[None], attention_mask=additive, position_ids=positions).logits[0]
    found, last = output.split(len(clean))
    if shifted:
        inside = torch.nn.functional.pad(blocks[1:] == blocks[:-1], (1, 0))
        found = torch.where(inside[:, None], found.roll(1, 0), last.roll(1, 0))
    found[:, 37:] = -math.inf  # the tokenizer knows 37 tokens
    return allowed(found, 36)


def plain_nll(answers, tokens, target, blocks, mask_token=36) -> float:
    """Block by block the mask average by its definition: every mask of the block's target, weighted 1 / (k C(m, k))."""
    total = 0.0
    for block in blocks[target].unique():
        places = [place for place in target.tolist() if blocks[place] == block]
        for size in range(1, len(places) + 1):
            for hidden in map(list, itertools.combinations(places, size)):
                noisy = tokens.clone()
                noisy[hidden] = mask_token
                cost = -float(answers(noisy)[hidden, tokens[hidden]].sum())
                total += cost / (size * math.comb(len(places), size))
    return total


OPTIONS = {"fast-dllm": {}}
CUTS = [(0, 11), (5, 11), (6, 8), (4, 8), (1, 10)]
"""First target token and end: blocks whole, begun by a prompt, and cut short by the end of a text."""


@pytest.mark.parametrize("origin", ["global", "response"])
@torch.no_grad()
def test_networks_against_transformers(backbone, origin):
    name, directory, network = backbone
    model = infodis.load(directory, block_origin=origin, **OPTIONS.get(name, {"block_size": SIZE}))
    clean = torch.randint(36, (11,), generator=torch.Generator().manual_seed(2))
    noisy = torch.where(torch.rand(11, generator=torch.Generator().manual_seed(3)) < 0.5, 36, clean)
    blocks = blocks_from(START if origin == "response" else 0, 11)
    states = model.network.encode(clean[None], blocks=blocks[None])
    features = model.network.block_features(noisy[None], states, blocks=blocks[None])
    found = model.network.logits(features)[0].float().log_softmax(-1)
    first = model.network.first_predicted
    assert first == (name == "fast-dllm")
    expected = conditionals(network, noisy, clean, blocks, shifted=bool(first))
    torch.testing.assert_close(found[first:], expected[first:], atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("origin", ["global", "response"])
def test_nll_against_transformers(backbone, origin):
    """Exact by enumeration in every block at once: equal to a plain loop over all masks, whatever the prompt cuts."""
    name, directory, network = backbone
    model = infodis.load(directory, block_origin=origin, **OPTIONS.get(name, {"block_size": SIZE}))
    tokens = torch.randint(36, (11,), generator=torch.Generator().manual_seed(4))
    shifted = name == "fast-dllm"
    for start, end in CUTS:
        if start < model.network.first_predicted:
            continue
        text = tokens[:end]
        blocks = blocks_from(start if origin == "response" else 0, end)
        found = infodis.nll(model, text, context=range(start), design=Blocks(Enumerate()), evaluations=15)
        expected = plain_nll(
            lambda noisy, text=text, blocks=blocks: conditionals(network, noisy, text, blocks, shifted=shifted),
            text,
            torch.arange(start, end),
            blocks,
        )
        assert found.value == pytest.approx(expected, abs=1e-4), (start, end)
        assert found.standard_error == 0


def decoded(network, context: list[int], count: int, blocks: torch.Tensor, *, shifted: bool) -> list[int]:
    """Block after block, in each the most confident token first, by transformers' own backbone."""
    row = torch.tensor([*context, *[36] * count])
    for block in blocks[len(context) :].unique():
        part = row[: int((blocks <= block).sum())]
        while (masked := part == 36).any():
            clean = torch.where(masked, 0, part)
            answer = conditionals(network, part, clean, blocks[: len(part)], shifted=shifted)
            place = torch.where(masked, answer.amax(-1), -math.inf).argmax()
            part[place] = answer[place].argmax()
    return row[len(context) :].tolist()


@pytest.mark.parametrize("origin", ["global", "response"])
@pytest.mark.filterwarnings("ignore")
def test_the_harness_against_transformers(backbone, origin):
    """Choices of unequal length after prompts that end in a block or with one, greedy flags, and what is written."""
    pytest.importorskip("lm_eval")
    from lm_eval.api.instance import Instance

    from infodis.apps.lm_eval.harness import InfodisLM

    name, directory, network = backbone
    shifted, given = name == "fast-dllm", OPTIONS.get(name, {"block_size": SIZE})
    lm = InfodisLM(str(directory), device="cpu", greedy="always", block_origin=origin, allow_unknown=True, **given)
    drawn = torch.randint(36, (3, 24), generator=torch.Generator().manual_seed(5)).tolist()
    requests, expected, prompts = [], [], []
    for doc, (row, length) in enumerate(zip(drawn, (4, 6, 17), strict=True)):
        prompt = row[:length]
        blocks = blocks_from(length if origin == "response" else 0, 40)
        greedy = decoded(network, prompt, 6, blocks[: length + 6], shifted=shifted)
        for number, choice in enumerate((greedy, [*greedy[:-1], (greedy[-1] + 1) % 36], row[-3:], row[-1:])):
            text = torch.tensor(prompt + choice)
            target, mine = torch.arange(length, len(text)), blocks[: len(text)]
            nll = plain_nll(
                lambda noisy, text=text, mine=mine: conditionals(network, noisy, text, mine, shifted=shifted),
                text, target, mine,
            )  # fmt: skip
            flag = choice == decoded(network, prompt, len(choice), mine, shifted=shifted)
            expected.append((pytest.approx(-nll, abs=1e-4), flag))
            requests.append(Instance("loglikelihood", {}, (said(prompt), " " + said(choice)), number, ("t", doc, 1)))
        prompts.append((prompt, greedy))
    assert lm.loglikelihood(requests, True) == expected
    assert [flag for _, flag in expected[:2]] == [True, False]
    for until, end in (([], 6), ([said(prompts[1][1][2:4])], 2)):
        arguments = {"max_gen_toks": 6, "until": until}
        asked = [
            Instance("generate_until", {}, (said(p), arguments), 0, ("t", n, 1)) for n, (p, _) in enumerate(prompts)
        ]
        found = lm.generate_until(asked, True)
        assert found[1].split() == said(prompts[1][1][:end]).split()
        if not until:
            assert found == [said(greedy) for _, greedy in prompts]


def said(tokens: list[int]) -> str:
    return " ".join(f"w{token}" for token in tokens)


@pytest.mark.parametrize("origin", ["global", "response"])
@pytest.mark.parametrize("name", RECORDED)
def test_nll_against_peer(name, origin):
    """The recorded answers to every mask of a block, averaged by definition; prompts that end inside a block too."""
    answer = load_file(REFERENCES / name / "answer.safetensors")
    if f"{origin}_noisy" not in answer:
        pytest.skip("its own sampler counts blocks from the first token only")
    model = infodis.load(REFERENCES / name, block_origin=origin, **RECORDED[name])
    tokens, noisy = answer["tokens"], answer[f"{origin}_noisy"]
    logs = allowed(answer[f"{origin}_output"], model.mask_token)
    blocks = blocks_from(START if origin == "response" else 0, len(tokens))

    def answers(row):
        """What was recorded where a row hides tokens: their block was masked in the same way in one of the rows."""
        block = blocks == blocks[(row != tokens).nonzero()[0]]
        return logs[int((noisy[:, block] == row[block]).all(-1).nonzero()[0])]

    for start in [START] if origin == "response" else [1, 4, 5, 6]:
        target = torch.arange(start, len(tokens))
        found = infodis.nll(model, tokens, context=range(start), design=Blocks(Enumerate()), evaluations=15)
        expected = plain_nll(answers, tokens, target, blocks, model.mask_token)
        assert found.value == pytest.approx(expected, abs=1e-4 * len(target)), start
