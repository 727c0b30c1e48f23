"""Masked language models of transformers, tiny and random."""

import json

import pytest
import torch

transformers = pytest.importorskip("transformers")

TINY = {
    "hidden_size": 16, "d_model": 16, "dim": 16, "emb_dim": 16, "embedding_size": 16,
    "num_hidden_layers": 2, "n_layers": 2, "encoder_layers": 2, "decoder_layers": 2,
    "num_attention_heads": 2, "n_heads": 2, "encoder_attention_heads": 2, "decoder_attention_heads": 2,
    "intermediate_size": 24, "hidden_dim": 24, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24,
    "vocab_size": 40, "max_position_embeddings": 40, "pad_token_id": 1, "type_vocab_size": 2,
}  # fmt: skip
"""What configurations call their sizes; each takes those that it knows."""

MASK = 4


def build(kind, directory):
    known = transformers.AutoConfig.for_model(kind)
    names = {*known.to_dict(), *getattr(known, "attribute_map", {})}
    config = transformers.AutoConfig.for_model(kind, **{name: size for name, size in TINY.items() if name in names})
    torch.manual_seed(0)
    model = transformers.AutoModelForMaskedLM.from_config(config).eval()
    model.save_pretrained(directory)
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"mask_token_id": MASK}))
    return model
