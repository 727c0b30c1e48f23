"""Record what the public LLaDA, Dream and MDLM networks answer, for tests/models/test_adapters.py to compare with.

Needs transformers 4.57.6 (later ones cannot run LLaDA's and Dream's files), einops, omegaconf, and directories with
their public modeling files, imports among them relative:

    python tests/references/record_hub.py --llada DIR --dream DIR --mdlm DIR

DIR holds configuration_llada.py and modeling_llada.py; configuration_dream.py, modeling_dream.py and
generation_utils.py; dit.py of the mdlm repository. Weights are random, in two shards with an index, as on the hub.
"""

import argparse
import importlib
import json
import math
import sys
import types
from importlib.machinery import ModuleSpec
from pathlib import Path

import torch
from safetensors.torch import save_file

HERE = Path(__file__).parent
LLADA = {
    "architectures": ["LLaDAModelLM"],
    "model_type": "llada",
    "d_model": 32,
    "n_heads": 4,
    "n_kv_heads": 2,
    "n_layers": 2,
    "mlp_hidden_size": 48,
    "vocab_size": 40,
    "embedding_size": 44,
    "max_sequence_length": 32,
    "rope": True,
    "rope_theta": 500000.0,
    "rope_full_precision": True,
    "rms_norm_eps": 1e-05,
    "layer_norm_type": "rms",
    "layer_norm_with_affine": True,
    "bias_for_layer_norm": False,
    "include_bias": False,
    "include_qkv_bias": False,
    "activation_type": "silu",
    "block_type": "llama",
    "block_group_size": 1,
    "attention_layer_norm": False,
    "weight_tying": False,
    "scale_logits": False,
    "input_emb_norm": False,
    "alibi": False,
    "flash_attention": False,
    "multi_query_attention": None,
    "attention_dropout": 0.0,
    "residual_dropout": 0.0,
    "embedding_dropout": 0.0,
    "mask_token_id": 36,
    "eos_token_id": 1,
    "pad_token_id": 1,
    "use_cache": False,
    "init_device": "cpu",
}
DREAM = {
    "architectures": ["DreamModel"],
    "model_type": "Dream",
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0,
    "rope_scaling": None,
    "max_position_embeddings": 64,
    "vocab_size": 44,
    "tie_word_embeddings": False,
    "mask_token_id": 36,
    "pad_token_id": 1,
    "bos_token_id": 1,
    "eos_token_id": 1,
    "use_sliding_window": False,
    "sliding_window": None,
    "use_cache": False,
}
MDLM = {
    "architectures": ["MDLM"],
    "model_type": "mdlm",
    "hidden_dim": 32,
    "cond_dim": 16,
    "n_blocks": 2,
    "n_heads": 4,
    "model_length": 32,
    "vocab_size": 41,
    "dropout": 0.1,
    "time_conditioning": False,
}


def fake_flash_attention() -> None:
    """The two functions of flash-attn that dit.py calls, by torch's attention."""

    def module(name: str) -> types.ModuleType:
        made = types.ModuleType(name)
        made.__spec__, made.__path__ = ModuleSpec(name, None), []
        sys.modules[name] = made
        return made

    whole, layers = module("flash_attn"), module("flash_attn.layers")
    rotary, interface = module("flash_attn.layers.rotary"), module("flash_attn.flash_attn_interface")
    whole.layers, layers.rotary, whole.flash_attn_interface = layers, rotary, interface

    def turn(x, cosine, sine):
        first, second = x.chunk(2, dim=-1)
        return torch.cat([first * cosine - second * sine, second * cosine + first * sine], dim=-1)

    def rotate(qkv, cosine, sine, **_):
        query, key, value = qkv.unbind(2)
        angles = cosine[None, :, None], sine[None, :, None]
        return torch.stack([turn(query, *angles), turn(key, *angles), value], dim=2)

    def attend(qkv, bounds, longest, dropout, causal=False, **_):
        parts = qkv.view(len(bounds) - 1, longest, *qkv.shape[1:]).unbind(2)
        query, key, value = (part.transpose(1, 2) for part in parts)
        found = torch.nn.functional.scaled_dot_product_attention(query, key, value)
        return found.transpose(1, 2).flatten(0, 1)

    rotary.apply_rotary_emb_qkv_, interface.flash_attn_varlen_qkvpacked_func = rotate, attend


def package(directory: Path, name: str):
    """A module of a directory whose files import each other relatively."""
    sys.path.insert(0, str(directory.parent))
    return importlib.import_module(f"{directory.name}.{name}")


def randomise(network):
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in sorted(network.named_parameters()):
            parameter.normal_(std=0.3 if parameter.ndim > 1 else 0.5, generator=generator)
            if "norm" in name or "ln_f" in name:
                parameter.add_(1.0)
    return network.eval()


def record(name: str, config: dict, weights: dict, answer: dict) -> None:
    directory = HERE / name
    directory.mkdir(exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    keys = sorted(weights)
    half = math.ceil(len(keys) / 2)
    index = {}
    for number, part in enumerate((keys[:half], keys[half:]), start=1):
        file = f"model-{number:05d}-of-00002.safetensors"
        save_file({key: weights[key].contiguous() for key in part}, directory / file, metadata={"format": "pt"})
        index |= dict.fromkeys(part, file)
    total = sum(weight.numel() * weight.element_size() for weight in weights.values())
    content = {"metadata": {"total_size": total}, "weight_map": index}
    (directory / "model.safetensors.index.json").write_text(json.dumps(content, indent=2) + "\n")
    save_file({key: value.float() if value.is_floating_point() else value for key, value in answer.items()},
              directory / "answer.safetensors")  # fmt: skip
    print(f"{name}: {tuple(answer['output'].shape)}, largest {float(answer['output'].abs().max()):.2f}")


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("--llada", "--dream", "--mdlm"):
        parser.add_argument(name, type=Path, required=True)
    given = parser.parse_args()
    tokens = torch.randint(40, (3, 12), generator=torch.Generator().manual_seed(1))

    config = package(given.llada, "configuration_llada").LLaDAConfig(**LLADA)
    network = randomise(package(given.llada, "modeling_llada").LLaDAModelLM(config))
    record("llada", LLADA, network.state_dict(), {"tokens": tokens, "output": network(tokens).logits})

    config = package(given.dream, "configuration_dream").DreamConfig(**DREAM)
    network = randomise(package(given.dream, "modeling_dream").DreamModel(config))
    logits = network(tokens).logits
    shifted = torch.cat([logits[:, :1], logits[:, :-1]], dim=1).contiguous()  # as its own sampler reads them
    record("dream", DREAM, network.state_dict(), {"tokens": tokens, "output": shifted})

    fake_flash_attention()
    from omegaconf import OmegaConf

    sizes = {"hidden_size": MDLM["hidden_dim"], "cond_dim": MDLM["cond_dim"], "n_blocks": MDLM["n_blocks"]}
    model = {**sizes, "n_heads": MDLM["n_heads"], "dropout": MDLM["dropout"], "scale_by_sigma": True}
    network = randomise(package(given.mdlm, "dit").DIT(OmegaConf.create({"model": model}), MDLM["vocab_size"]))
    weights = {f"backbone.{key}": value for key, value in network.state_dict().items()}
    record("mdlm", MDLM, weights, {"tokens": tokens, "output": network(tokens, torch.zeros(len(tokens)))})


if __name__ == "__main__":
    main()
