"""Every kind of model can be trained on a plan: the gradient of its log-likelihood against differences of values."""

import copy
from pathlib import Path

import pytest
import torch
from tiny_models import build, transformers
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import infodis
from infodis.models.model import Model
from infodis.models.nets import RADD, NetworkShape, initialise
from infodis.rng import stream

TOKENS, MASK = 7, 7
ROWS = [[0, 1, 2, 3, 4, 5, 6, 0], ([1, 2, 3], [4, 5]), torch.tensor([6, 5, 4]), ([0], [1, 2, 3, 4])]


def radd(block_size: int = 0) -> RADD:
    """With weights so large that everything matters, clean text too."""
    network = RADD(TOKENS, NetworkShape(16, 2, 2, block_size=block_size))
    initialise(network, generator=stream(0, "weights"))
    with torch.no_grad():
        for parameter in network.parameters():
            parameter += 0.3 * torch.randn(parameter.shape, generator=stream(1, "more"))
    return network


def bert(tmp_path) -> nn.Module:
    return build("bert", tmp_path).train()


def gpt2(tmp_path) -> nn.Module:
    sizes = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 32, "vocab_size": 8}
    torch.manual_seed(0)
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, bos_token_id=7, eos_token_id=7))


class Conditionals(nn.Module):
    """Any module, by `from_function`."""

    def __init__(self) -> None:
        super().__init__()
        self.network = radd()

    def forward(self, tokens):
        return torch.log_softmax(self.network(tokens)[..., :TOKENS], dim=-1)


KINDS = {
    "ours": lambda _: (network := radd(), infodis.load(network)),
    "blocks": lambda _: (network := radd(2), infodis.load(network)),
    "causal": lambda _: (network := radd(1), infodis.load(network)),
    "masked LM": lambda path: (network := bert(path), infodis.load(network, mask_token=39, vocab_size=TOKENS)),
    "causal LM": lambda path: (network := gpt2(path), infodis.load(network, vocab_size=TOKENS)),
    "any module": lambda _: (network := Conditionals(), infodis.load(network, mask_token=MASK, vocab_size=TOKENS)),
    "function": lambda _: (
        network := Conditionals(),
        infodis.from_function(network, vocab_size=TOKENS, mask_token=MASK),
    ),
}


@pytest.fixture(params=list(KINDS))
def kind(request, tmp_path):
    return KINDS[request.param](tmp_path)


def rows_for(model):
    """An autoregressive model of transformers says nothing about the first token of a row."""
    first = model.network.first_predicted if isinstance(model, Model) else 0
    return [row for row in ROWS if not first or isinstance(row, tuple)]


def test_gradients_are_the_slopes_of_the_values(kind):
    """Along the gradient, where a part that is missing would show."""
    network, model = kind
    plan = infodis.draw_plan(model, rows_for(model), evaluations=4)
    weights = [p for p in network.parameters() if p.requires_grad]
    log_p = infodis.log_likelihood(model, plan, micro_batch=3)
    slopes = torch.autograd.grad(log_p.sum(), weights, allow_unused=True)
    length = torch.cat([slope.flatten() for slope in slopes if slope is not None]).norm()

    def moved(step):
        with torch.no_grad():
            for weight, slope in zip(weights, slopes, strict=True):
                if slope is not None:
                    weight += step * slope / length
            return float(infodis.log_likelihood(model, plan).sum())

    step = 3e-3
    above, below = moved(step), moved(-2 * step)
    assert (above - below) / (2 * step) == pytest.approx(float(length), rel=5e-3)


def test_micro_batches_checkpoints_and_autocast_keep_the_promise(kind):
    network, model = kind
    plan = infodis.draw_plan(model, rows_for(model), evaluations=4)
    weights = [p for p in network.parameters() if p.requires_grad]

    def run(**options):
        log_p = infodis.log_likelihood(model, plan, **options)
        slopes = torch.autograd.grad(log_p.sum(), weights, allow_unused=True)
        return log_p.detach(), torch.cat([slope.flatten() for slope in slopes if slope is not None])

    value, slope = run(micro_batch=1, checkpoint=False)
    for options in ({"micro_batch": 1}, {"micro_batch": 3}, {"micro_batch": 64}):
        other, its = run(**options)
        torch.testing.assert_close(other, value, rtol=1e-6, atol=1e-6)
        assert float((its - slope).abs().max()) < 1e-5 * float(slope.abs().max())
    with torch.no_grad():
        assert not infodis.log_likelihood(model, plan).requires_grad
    with torch.autocast("cpu", torch.bfloat16):
        rough, its = run(micro_batch=3)
    assert bool(its.isfinite().all())
    torch.testing.assert_close(rough, value, rtol=0.05, atol=0.1)
    assert float(torch.cosine_similarity(its.float(), slope.float(), dim=0)) > 0.99


def test_a_whole_step_of_preference_training():
    """The example of the documentation: texts, pairs of prompt and response and tokens, in one batch."""
    model, reference = infodis.load("text8-tiny", trainable=True), infodis.load("text8-tiny")
    tokens = model.encode("some tokens")
    rows = ["a text", "another", ("the capital of france is ", "paris"), ("the capital of france is ", "rome")]
    rows += [tokens, tokens.flip(0)]
    plan = infodis.draw_plan(model, rows, evaluations=4, design=infodis.Dealt(), seed=0, step=5)
    with torch.no_grad():
        reference_log_p = infodis.log_likelihood(reference, plan)
    assert reference_log_p.shape == (6,)
    optimizer = torch.optim.AdamW(model.network.parameters(), lr=1e-3)
    losses = []
    for _ in range(3):
        log_p = infodis.log_likelihood(model, plan, micro_batch=16)
        loss, report = infodis.dpo_loss(log_p, reference_log_p, beta=0.1, report=True)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append((float(loss.detach()), float(report.margin.mean()), report.accuracy))
    assert losses[0][1] == pytest.approx(0, abs=1e-4)
    assert losses[2][0] < losses[1][0] < losses[0][0]
    assert losses[2][2] == 1
    each = infodis.log_likelihood(model, plan, per_token=True)
    assert each.shape == (6, plan.width)


def test_under_ddp_gradients_are_those_of_the_network(tmp_path):
    """Every micro-batch, and every one that is run again in the backward pass, goes through the wrapper."""
    network = radd()
    plain = infodis.load(copy.deepcopy(network))
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path / 'meet'}", rank=0, world_size=1)
    try:
        wrapped = infodis.load(DistributedDataParallel(network), mask_token=MASK, vocab_size=TOKENS)
        plan = infodis.draw_plan(plain, ROWS, evaluations=4)
        for model in (plain, wrapped):
            infodis.log_likelihood(model, plan, micro_batch=3).sum().backward()
    finally:
        torch.distributed.destroy_process_group()
    for (name, mine), its in zip(plain.network.named_parameters(), network.parameters(), strict=True):
        torch.testing.assert_close(its.grad, mine.grad, rtol=1e-4, atol=1e-5, msg=name)


@pytest.mark.filterwarnings("ignore:FSDP2-wrapped")
def test_sharded_modules_have_the_gradients_of_whole_ones(tmp_path):
    """FSDP gathers weights around `forward`: a module from tokens to logits, or one of transformers, is run by that."""
    network = bert(tmp_path)
    sharded = copy.deepcopy(network)
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path / 'meet'}", rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1,))
        for layer in (*sharded.bert.encoder.layer, sharded):
            fully_shard(layer, mesh=mesh)
        models = [infodis.load(one, mask_token=39, vocab_size=TOKENS) for one in (network, sharded)]
        plan = infodis.draw_plan(models[0], ROWS, evaluations=4)
        for model in models:
            infodis.log_likelihood(model, plan, micro_batch=3).sum().backward()
        for mine, its in zip(network.parameters(), sharded.parameters(), strict=True):
            if mine.grad is not None:
                torch.testing.assert_close(its.grad.full_tensor(), mine.grad, rtol=1e-4, atol=1e-5)
    finally:
        torch.distributed.destroy_process_group()


def one_of_several(rank: int, world: int, place: Path, kind: str) -> None:
    """A process that has its share of the rows, and writes down the gradients that all of them agree on."""
    torch.set_num_threads(1)
    network = Conditionals() if kind == "ddp" else bert(place / str(rank))
    torch.distributed.init_process_group("gloo", init_method=f"file://{place / kind}", rank=rank, world_size=world)
    mask_token = MASK if kind == "ddp" else 39
    if kind == "ddp":
        wrapped = DistributedDataParallel(network)
    else:
        mesh = init_device_mesh("cpu", (world,))
        wrapped = [fully_shard(part, mesh=mesh) for part in (*network.bert.encoder.layer, network)][-1]
    model = infodis.load(wrapped, mask_token=mask_token, vocab_size=TOKENS)
    plan = infodis.draw_plan(model, ROWS[rank::world], evaluations=4, seed=1, step=3)
    (world * infodis.log_likelihood(model, plan, micro_batch=3).sum()).backward()  # wrappers take the mean
    slopes = {name: p.grad for name, p in network.named_parameters() if p.grad is not None}
    whole = {name: slope.full_tensor() if kind == "fsdp" else slope for name, slope in slopes.items()}
    plan.save(place / f"{kind}-{rank}.safetensors")
    if rank == 0:
        torch.save(whole, place / f"{kind}.pt")
    torch.distributed.destroy_process_group()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_two_processes_have_the_masks_and_gradients_of_one(kind, tmp_path):
    """Each has half of the rows. Masks are named by rows, seed and step, so nobody has to hand them around."""
    torch.multiprocessing.spawn(one_of_several, (2, tmp_path, kind), nprocs=2)
    network = Conditionals() if kind == "ddp" else bert(tmp_path / "whole")
    model = infodis.load(network, mask_token=MASK if kind == "ddp" else 39, vocab_size=TOKENS)
    plan = infodis.draw_plan(model, ROWS, evaluations=4, seed=1, step=3)
    for rank in range(2):
        part = infodis.MaskPlan.load(tmp_path / f"{kind}-{rank}.safetensors")
        for place, number in enumerate(range(rank, len(ROWS), 2)):
            mine, its = plan.sequence == number, part.sequence == place
            assert torch.equal(plan.masked[mine, : part.width], part.masked[its, : plan.width])
    infodis.log_likelihood(model, plan, micro_batch=3).sum().backward()
    found = torch.load(tmp_path / f"{kind}.pt")
    largest = max(float(p.grad.abs().max()) for p in network.parameters() if p.grad is not None)
    for name, parameter in network.named_parameters():
        if parameter.grad is not None:
            assert float((found[name] - parameter.grad).abs().max()) < 1e-6 * largest, name


@pytest.mark.filterwarnings("ignore")  # of PEFT and transformers, about each other
def test_only_adapters_of_peft_move(tmp_path):
    peft = pytest.importorskip("peft", reason="PEFT is not installed: pip install peft")
    lora = peft.LoraConfig(r=2, target_modules=["query", "value"])
    network = peft.get_peft_model(bert(tmp_path), lora)
    model = infodis.load(network, mask_token=39, vocab_size=TOKENS)
    plan = infodis.draw_plan(model, ROWS, evaluations=4)
    infodis.log_likelihood(model, plan, micro_batch=3).sum().backward()
    moved = {name for name, p in network.named_parameters() if p.grad is not None and bool(p.grad.any())}
    assert moved
    assert all("lora_B" in name for name in moved)  # the other half is behind zeros at first
    with torch.no_grad(), network.disable_adapter():
        reference = infodis.log_likelihood(model, plan, micro_batch=3)
    torch.testing.assert_close(infodis.log_likelihood(model, plan, micro_batch=3).detach(), reference)
