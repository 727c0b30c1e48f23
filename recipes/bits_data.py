"""Draw the data of bits-tiny: strings of 16 bits from the 270 that obey its constraints, end to end in one file.

python recipes/bits_data.py
"""

from pathlib import Path

import numpy as np
import torch

from infodis.apps.bench.problems import balanced_strings
from infodis.rng import stream

HERE = Path(__file__).parent.parent / "data"
HERE.mkdir(exist_ok=True)
strings = balanced_strings()
for part, count in (("train", 1_000_000), ("valid", 2_048)):
    drawn = torch.randint(len(strings), (count,), generator=stream(0, "bits-tiny", part))
    np.save(HERE / f"bits_{part}.npy", strings[drawn].flatten().numpy().astype(np.uint8))
    print(f"{HERE / f'bits_{part}.npy'}: {count} strings")
