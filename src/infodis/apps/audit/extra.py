"""What an audit needs beside infodis itself."""

import importlib.util

from infodis.errors import InputError


def check_extra() -> None:
    """What is missing is told before the work, not after it."""
    if any(importlib.util.find_spec(name) is None for name in ("sklearn", "vl_convert", "jinja2")):
        raise InputError("An audit needs scikit-learn, jinja2 and vl-convert-python: pip install 'infodis[audit]'.")
