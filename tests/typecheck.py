"""The type checker of the tests: beartype, with an int allowed where a float is asked for, as in all of Python."""

from beartype import BeartypeConf, beartype

checked = beartype(conf=BeartypeConf(is_pep484_tower=True))
