"""What `infodis curve` takes for 100 texts of 128 characters: prompts of 32, responses of 96.

    python benchmarks/curve.py --text data/text8_valid.txt.gz

Prints its table, and the seconds from start to picture.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from infodis.models.text_files import opened_text

TEXTS, PROMPT, RESPONSE, APART = 100, 32, 96, 3000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path, required=True, help="held-out text8, plain or .gz")
    parser.add_argument("--out", type=Path, default=Path("out/bench"), help="directory for records and picture")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    with opened_text(given.text) as file:
        text = file.read(TEXTS * APART)
    with tempfile.TemporaryDirectory() as scratch:
        rows = Path(scratch) / "texts.jsonl"
        with rows.open("w") as file:
            for start in range(0, TEXTS * APART, APART):
                middle, end = start + PROMPT, start + PROMPT + RESPONSE
                file.write(json.dumps({"prompt": text[start:middle], "response": text[middle:end]}) + "\n")
        command = [sys.executable, "-m", "infodis", "curve", str(rows), "--steps", "12"]
        begin = time.perf_counter()
        subprocess.run([*command, "--out", given.out / "curve.jsonl", "--plot", given.out / "curve.svg"], check=True)
        print(f"{time.perf_counter() - begin:.0f} s, start and picture included")


if __name__ == "__main__":
    main()
