"""Draw the data of dna-tiny: sequences of length 8 from the paper's 128, end to end in one file of tokens.

python recipes/dna_data.py
"""

from pathlib import Path

import numpy as np

from infodis.oracle import Table
from infodis.rng import stream

HERE = Path(__file__).parent.parent / "data"
HERE.mkdir(exist_ok=True)
for part, count in (("train", 2_000_000), ("valid", 4_096)):
    tokens = Table.dna(seed=0).sample(count, length=8, generator=stream(0, "dna-tiny", part))
    np.save(HERE / f"dna_{part}.npy", tokens.flatten().numpy().astype(np.uint8))
    print(f"{HERE / f'dna_{part}.npy'}: {count} sequences")
