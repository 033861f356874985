"""Writes docs/cli.md: the command's own help. Run by ``make docs``, checked by the tests."""

from __future__ import annotations

from pathlib import Path

import click

from strop.cli.main import main


def render() -> str:
    """Return the page."""
    parts = ["# The command line\n\nMade from the command's own help by `make docs`.\n"]
    # With the command's own settings: click remembers the help option it first made.
    settings = {**main.context_settings, "terminal_width": 100, "max_content_width": 100}
    context = click.Context(main, info_name="strop", **settings)
    parts.append(_block("strop", main, context))
    for name in sorted(main.commands):
        command = main.commands[name]
        below = click.Context(command, parent=context, info_name=name, **settings)
        parts.append(_block(f"strop {name}", command, below))
        for inner, verb in sorted(getattr(command, "commands", {}).items()):
            innermost = click.Context(verb, parent=below, info_name=inner, **settings)
            parts.append(_block(f"strop {name} {inner}", verb, innermost))
    return "\n".join(parts)


def _block(title: str, command: click.Command, context: click.Context) -> str:
    return f"## {title}\n```\n{command.get_help(context)}\n```\n"


if __name__ == "__main__":
    (Path(__file__).parent / "cli.md").write_text(render(), encoding="utf-8")
