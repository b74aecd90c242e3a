"""``python -m latecomer`` is the command line."""

from latecomer.cli import main

main()
