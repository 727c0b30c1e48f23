"""How much memory this process takes, as Linux counts it."""

from pathlib import Path

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def memory_mebibytes(field: str = "VmRSS") -> float:
    """VmRSS is held now, VmHWM was the most since `forget_peak`."""
    lines = STATUS.read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field)) / 1024


def forget_peak() -> None:
    """From now on the most is counted anew."""
    CLEAR.write_text("5")
