"""The type checker of the tests: beartype, with an int allowed where a float is asked for, as in all of Python."""

import sys

from beartype import BeartypeConf, beartype

_beartype = beartype(conf=BeartypeConf(is_pep484_tower=True))


def checked(what):
    """What beartype makes of a function or class. Of Python 3.10 it cannot read Unpack: only overloads have it."""
    hints = map(str, getattr(what, "__annotations__", {}).values())
    unread = sys.version_info < (3, 11) and any("Unpack[" in hint for hint in hints)
    return what if unread else _beartype(what)
