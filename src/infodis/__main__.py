"""`python -m infodis` is the command line."""

from infodis.cli import main

main()
