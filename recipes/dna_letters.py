"""Draw the letters of dna-list, dna-chain and dna-order-2, as `infodis reproduce ... --train` draws them.

python recipes/dna_letters.py
"""

from pathlib import Path

import numpy as np

from infodis.apps.reproduce.dna import PEAKED
from infodis.apps.reproduce.toys import VALID, draw_letters
from infodis.oracle import MarkovChain, Table
from infodis.rng import stream

HERE = Path(__file__).parent.parent / "data"
HERE.mkdir(exist_ok=True)
ORACLES = {
    "dna-list": (Table.dna(seed=0), 8_000_000, 8),
    "dna-chain": (PEAKED.make(0), 5_000_000, 32),
    "dna-order-2": (MarkovChain.random(order=2, vocab_size=4, temperature=0.5, seed=0), 5_000_000, 32),
}
for name, (oracle, count, length) in ORACLES.items():
    for part, letters in (("train", count), ("valid", VALID)):
        path = HERE / f"{name}-{part}.npy"
        np.save(path, draw_letters(oracle, letters, length, generator=stream(0, "dna", part)))
        print(f"{path}: {letters:,} letters")
