"""All commands, by their whole names."""

import importlib
from collections.abc import Iterator

import click

from turbopump.cli.entry import COMMANDS


def every_command(name: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
    """A command by its whole name, and those of a group."""
    yield name, command
    if not isinstance(command, click.Group):
        return
    context = click.Context(command)
    for inner in command.list_commands(context):
        one = command.get_command(context, inner)
        assert one is not None
        yield from every_command(f"{name} {inner}", one)


def named_commands() -> dict[str, click.Command]:
    return {
        named: one
        for name in COMMANDS
        for named, one in every_command(
            name, importlib.import_module(f"turbopump.cli.{name}").command
        )
    }
