"""Text from elsewhere as a terminal may see it: characters, never commands."""


def printable(text: str, most: int | None = None, *, keep: str = "") -> str:
    r"""At most so many characters, none of which does anything to a terminal, turns text around or is no character.

    Escape and other control characters, line separators, bidirectional marks and surrogates are written out. `keep`
    names those that stay, such as line ends.

    >>> printable(chr(27) + "[31mred", keep=chr(10)).encode("ascii")
    b'\\x1b[31mred'
    """
    shown = text[:most]
    if shown.isprintable():
        return shown
    return "".join(c if c.isprintable() or c in keep else c.encode("unicode_escape").decode("ascii") for c in shown)[
        :most
    ]
