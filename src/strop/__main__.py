"""``python -m strop`` is the ``strop`` command."""

from strop.cli import main

main(prog_name="strop")
