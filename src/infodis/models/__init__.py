"""Models as people have them: loading, families of checkpoints, networks, tokenizers, the weights that ship."""
