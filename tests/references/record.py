"""Record what the public RADD and SEDD networks answer, for tests/models/test_nets.py to compare with.

Needs clones of their repositories, and einops, omegaconf and huggingface_hub:

    python tests/references/record.py --radd ../RADD --sedd ../Score-Entropy-Discrete-Diffusion

Weights are random; configurations have the layout of the hub. SEDD's flash attention is replaced by torch's, which
computes the same on a CPU.
"""

import argparse
import importlib
import json
import sys
import types
from pathlib import Path

import torch
from safetensors.torch import save_file

HERE = Path(__file__).parent
MODEL = {"hidden_size": 32, "cond_dim": 24, "length": 16, "n_blocks": 2, "n_heads": 4, "dropout": 0.1}


def fake_flash_attention() -> None:
    def attend(qkv, bounds, longest, dropout, causal):
        rows = len(bounds) - 1
        query, key, value = qkv.view(rows, longest, *qkv.shape[1:]).permute(2, 0, 3, 1, 4)
        found = torch.nn.functional.scaled_dot_product_attention(query, key, value)
        return found.transpose(1, 2).flatten(0, 1)

    for name in ("flash_attn", "flash_attn.flash_attn_interface"):
        sys.modules[name] = types.ModuleType(name)
    sys.modules["flash_attn.flash_attn_interface"].flash_attn_varlen_qkvpacked_func = attend


def network(clone: Path, name: str, config: dict):
    for loaded in [m for m in sys.modules if m == "model" or m.startswith("model.")]:
        del sys.modules[loaded]
    sys.path.insert(0, str(clone))
    made = getattr(importlib.import_module("model.transformer"), name)(config)
    sys.path.pop(0)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.normal_(std=0.2, generator=generator)
    return made.eval()


def record(name: str, net, config: dict, answer: dict) -> None:
    directory = HERE / name
    directory.mkdir(exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    save_file({k: v.contiguous() for k, v in net.state_dict().items()}, directory / "model.safetensors")
    save_file(answer, directory / "answer.safetensors")
    print(f"{name}: {tuple(answer['output'].shape)}")


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--radd", type=Path, required=True)
    parser.add_argument("--sedd", type=Path, required=True)
    given = parser.parse_args()
    tokens = torch.randint(12, (3, 16), generator=torch.Generator().manual_seed(1))
    config = {"tokens": 11, "model": {**MODEL, "name": "small_radd", "type": "ddit_wot", "use_checkpoint": False}}
    config["model"]["dtype"] = "float32"
    net = network(given.radd, "RADD", config)
    record("radd", net, config, {"tokens": tokens, "output": net(tokens)[..., :-1].float().contiguous()})
    fake_flash_attention()
    sigma = torch.tensor([0.05, 0.6, 4.0])
    for noise in ("absorb", "uniform"):
        model = {**MODEL, "name": "small", "type": "ddit", "scale_by_sigma": noise == "absorb"}
        config = {"tokens": 11, "graph": {"type": noise}, "model": model}
        net = network(given.sedd, "SEDD", config)
        rows = tokens if noise == "absorb" else tokens.clamp(max=10)
        record(f"sedd-{noise}", net, config, {"tokens": rows, "sigma": sigma, "output": net(rows, sigma).float()})


if __name__ == "__main__":
    main()
