"""``python -m strop`` is the ``strop`` command."""

from strop.cli.main import main

main(prog_name="strop")
