"""Files that pytest does not look for examples in: what they import is not installed everywhere."""

import importlib.util

collect_ignore_glob = ["tests/references/record_*.py"]  # they run other projects' networks
if importlib.util.find_spec("trl") is None:
    collect_ignore_glob.append("src/infodis/train/trl.py")
