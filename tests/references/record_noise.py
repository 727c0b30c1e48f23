"""Record what the public UDLM, Duo, GIDD and time-conditioned MDLM networks answer: tests/models/test_noise_models.py.

Needs einops and omegaconf, and clones of their repositories:

    python tests/references/record_noise.py --udlm DIR --duo DIR --gidd DIR --mdlm DIR

(discrete-diffusion-guidance, duo, gidd, mdlm). Weights are random, in two shards with an index, as on the hub. Duo and
GIDD also say what their own losses make of these answers, token by token. Flash attention is replaced by torch's;
without it GIDD's network takes rows of its full length only.
"""

import argparse
import importlib.util
import sys
import types
from pathlib import Path

import torch
from omegaconf import OmegaConf
from record_hub import MDLM, fake_flash_attention, package, randomise, record

SIZES = {"hidden_dim": 32, "cond_dim": 16, "n_blocks": 2, "n_heads": 4, "model_length": 32, "dropout": 0.1}
VOCAB = 41
UDLM = {"architectures": ["UDLM"], "model_type": "udlm", **SIZES, "vocab_size": VOCAB, "time_conditioning": True,
        "cfg": False, "cfg_num_classes": -1}  # fmt: skip
DUO = {"architectures": ["DUO"], "model_type": "duo", **SIZES, "vocab_size": VOCAB, "causal": False, "var_min": False}
GIDD = {"architectures": ["DIT"], "model_type": "dit", "vocab_size": VOCAB, "max_seq_len": 12, "hidden_size": 32,
        "timestep_cond_dim": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "attention_dropout": 0.0,
        "p_uniform": 0.2, "t_eps": 1e-4}  # fmt: skip
TIMES = torch.tensor([0.05, 0.4, 0.9])
END = 1e-3
"""What is left of the signal at the end of a log-linear schedule."""


def alone(directory: Path, name: str):
    """A module of a clone, whatever others of that name were imported before."""
    for loaded in [one for one in sys.modules if one.split(".")[0] == name.split(".")[0]]:
        del sys.modules[loaded]
    sys.path.insert(0, str(directory))
    found = importlib.import_module(name)
    sys.path.pop(0)
    return found


def file(path: Path):
    """A module by its file, without the package around it."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def noised(tokens, columns, generator):
    """Some tokens replaced by others."""
    hit = torch.rand(tokens.shape, generator=generator) < 0.5
    return torch.where(hit, torch.randint(columns, tokens.shape, generator=generator), tokens)


def record_gidd(clone: Path, tokens) -> None:
    config = package(clone / "gidd" / "models", "configuration_dit").DITConfig(**GIDD)
    network = randomise(package(clone / "gidd" / "models", "modeling_dit").DIT(config))
    sys.modules["gidd"] = types.ModuleType("gidd")  # without its pipeline, which wants more than we have
    sys.modules["gidd"].__path__ = [str(clone / "gidd")]
    process, losses = (importlib.import_module(f"gidd.{name}") for name in ("diffusion_process", "loss"))

    class Words:
        mask_token_id = VOCAB - 1

        def __len__(self):
            return VOCAB

    schedule = process.HybridDiffusion(Words(), p_uniform=GIDD["p_uniform"])
    options = {"loss": {"loss_weighting": "none", "min_loss_weight": 0.0, "max_loss_weight": 2.0}}
    rows = noised(tokens, VOCAB, torch.Generator().manual_seed(2))
    output = network(rows, TIMES)
    loss = losses.GiddLoss(OmegaConf.create(options), Words(), schedule)
    _, elbo, _ = loss.loss(output.clone(), tokens, torch.ones_like(tokens), rows, TIMES)
    record(
        "gidd",
        GIDD,
        network.state_dict(),
        {"clean": tokens, "tokens": rows, "time": TIMES, "output": output, "loss": elbo},
    )


def record_duo(clone: Path, tokens) -> None:
    dit = alone(clone, "models.dit")
    model = {"hidden_size": 32, "cond_dim": 16, "n_blocks": 2, "n_heads": 4, "dropout": 0.1, "scale_by_sigma": True}
    config = OmegaConf.create({"model": model, "algo": {"causal_attention": False}})
    network = randomise(dit.DIT(config, VOCAB))
    base = types.ModuleType("trainer_base")
    for name in ("TrainerBase", "AbsorbingState", "UniformState", "Diffusion"):
        setattr(base, name, type(name, (), {}))
    sys.modules["trainer_base"], sys.modules["utils"] = base, types.ModuleType("utils")
    loss = alone(clone, "algo").DUO_BASE.nll_per_token
    alpha = (1 - (1 - END) * TIMES).unsqueeze(-1)
    sigma = -alpha.log().squeeze(-1)
    rows = noised(tokens, VOCAB, torch.Generator().manual_seed(2))
    output = network(rows, sigma)
    owner = types.SimpleNamespace(vocab_size=VOCAB)
    found = loss(owner, output.log_softmax(-1), rows, tokens, alpha, -(1 - END) * torch.ones_like(alpha))
    weights = {f"backbone.{key}": value for key, value in network.state_dict().items()}
    record("duo", DUO, weights, {"clean": tokens, "tokens": rows, "time": TIMES, "output": output, "loss": found})


def record_udlm(clone: Path, tokens) -> None:
    hub = clone / "models" / "hf"
    config = package(hub, "configuration_udlm").UDLMConfig(**UDLM)
    network = randomise(package(hub, "modeling_udlm").DITBackbone(config))
    rows = noised(tokens, VOCAB, torch.Generator().manual_seed(2))
    output = network(rows, -torch.log1p(-(1 - END) * TIMES))[0]
    weights = {f"backbone.{key}": value for key, value in network.state_dict().items()}
    record("udlm", UDLM, weights, {"clean": tokens, "tokens": rows, "time": TIMES, "output": output})


def record_mdlm(clone: Path, tokens) -> None:
    """Rows with 3, 6 and 12 of 12 tokens masked, at the noise where so many are expected."""
    sizes = {"hidden_size": MDLM["hidden_dim"], "cond_dim": MDLM["cond_dim"], "n_blocks": MDLM["n_blocks"]}
    model = {**sizes, "n_heads": MDLM["n_heads"], "dropout": MDLM["dropout"], "scale_by_sigma": True}
    network = randomise(file(clone / "models" / "dit.py").DIT(OmegaConf.create({"model": model}), VOCAB))
    masked = torch.arange(tokens.shape[1]) < torch.tensor([[3], [6], [12]])
    rows, share = torch.where(masked, VOCAB - 1, tokens), masked.float().mean(1)
    output = network(rows, -torch.log1p(-share.clamp(max=1 - END)))
    weights = {f"backbone.{key}": value for key, value in network.state_dict().items()}
    config = {**MDLM, "time_conditioning": True}
    record("mdlm-time", config, weights, {"tokens": rows, "output": output})


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("--udlm", "--duo", "--gidd", "--mdlm"):
        parser.add_argument(name, type=Path, required=True)
    given = parser.parse_args()
    tokens = torch.randint(VOCAB - 1, (3, 12), generator=torch.Generator().manual_seed(1))
    record_gidd(given.gidd, tokens)  # before flash attention seems to be there
    fake_flash_attention()
    sys.modules["flash_attn.layers.rotary"].apply_rotary_emb_torch = lambda x, cosine, sine: torch.cat(
        [
            x[..., : x.shape[-1] // 2] * cosine[None, :, None] - x[..., x.shape[-1] // 2 :] * sine[None, :, None],
            x[..., x.shape[-1] // 2 :] * cosine[None, :, None] + x[..., : x.shape[-1] // 2] * sine[None, :, None],
        ],
        dim=-1,
    )
    record_udlm(given.udlm, tokens)
    record_duo(given.duo, tokens)
    record_mdlm(given.mdlm, tokens)


if __name__ == "__main__":
    main()
