"""Entry point of the command line. It lists the commands, and reports the failure of a command.

A command's module is imported only when the command is called; `--help` reads the table below. A
failure prints one sentence and has an exit code (below), never a traceback. Options are unknown
here.
"""

from __future__ import annotations

import importlib
import io
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import click

from turbopump import __version__
from turbopump.documentation import SITE
from turbopump.errors import ConfigError, NotFoundError, TurbopumpError

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

# Exit codes of every client command. docs/reference/cli.md has the table.
INCOMPLETE: Final = 1
"""The command failed, also on some servers only, or a check found a problem."""
WRONG_USAGE: Final = 2
"""An option, an argument or a setting is wrong, or `--yes` is missing."""
NOT_FOUND: Final = 3
"""The topic, the group or another thing that was asked for does not exist."""
EXISTS: Final = 4
"""The thing to create exists."""
DENIED: Final = 5
"""`auth test`: the user may not do it."""
INTERRUPTED: Final = 130
"""Ctrl-C."""
COMMANDS: Final = {
    "dev": "A name server and a broker in one process, for development.",
    "namesrv": "A name server.",
    "broker": "A broker.",
    "controller": "A controller, which makes a replica the master.",
    "exporter": "Metrics of a whole cluster for Prometheus.",
    "produce": "Send messages from JSON lines on standard input.",
    "consume": "Write messages as JSON lines to standard output.",
    "doctor": "Find problems of a cluster and show the fixes.",
    "tls": "Certificates for servers that have none.",
    "cluster": "Show whole clusters: brokers, masters and slaves.",
    "topic": "List, show, create, change and delete topics.",
    "group": "Consumer groups: settings, members, lag.",
    "consumer": "Running consumers: show and ask them, set pull or pop.",
    "producer": "Connected producers.",
    "offset": "Show, reset and clone the offsets of consumer groups.",
    "kv": "Key-value configuration of the name servers.",
    "auth": "Manage users and their permissions.",
    "message": "Find messages by id, by key, by offset in a queue, by time.",
    "dlq": "Show, resend and export dead letters.",
    "pipeline": "Copy topics into a lake, on Spark, or into another cluster.",
    "sql": "Ask topics and lakes in SQL, on Spark.",
    "store": "Inspect and verify a store directory.",
}


class SuggestingGroup(click.Group):
    """Group of commands. For an unknown command, the error suggests a similar name."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        known = self.list_commands(ctx)
        if args and args[0] not in known and not args[0].startswith("-"):
            from difflib import get_close_matches

            near = get_close_matches(args[0], known, n=1)
            meant = f". Did you mean {near[0]!r}?" if near else ""
            ctx.fail(f"No such command {args[0]!r}{meant}")
        return super().resolve_command(ctx, args)


class LazyGroup(SuggestingGroup):
    """Group of commands with lazy import: the module of a command is imported when the command is
    called.

    ``places`` has the module and the name of each of these commands. Other commands may be added as
    usual.
    """

    def __init__(self, *given: Any, places: Mapping[str, tuple[str, str]], **extra: Any) -> None:
        super().__init__(*given, **extra)
        self._places = places

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*self.commands, *self._places]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._places:
            return super().get_command(ctx, cmd_name)
        module, name = self._places[cmd_name]
        command = getattr(importlib.import_module(module), name)
        assert isinstance(command, click.Command)
        return command


class MainGroup(LazyGroup):
    """Group of all commands. The help and the completion of its commands import no module.

    A command ends quietly after Ctrl-C, and when the reader of its output stops (`turbopump consume
    | head`). click's own `main` would report the stopped reader as a failure.
    """

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        fitting = [
            CompletionItem(name, help=about)
            for name, about in COMMANDS.items()
            if name.startswith(incomplete)
        ]
        return [*fitting, *click.Command.shell_complete(self, ctx, incomplete)]

    def make_context(self, *given: Any, **extra: Any) -> click.Context:
        with _quiet_ends():
            return super().make_context(*given, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        with _quiet_ends():
            return super().invoke(ctx)


@contextmanager
def _quiet_ends() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        drop_output()
        raise click.exceptions.Exit(0) from None
    except KeyboardInterrupt:
        raise click.exceptions.Exit(INTERRUPTED) from None


def command_group(name: str, about: str, **settings: Any) -> click.Group:
    """Return a group of commands with the given name and help.

    Called without a command, the group shows its help and exits with code 2.
    """

    @click.pass_context
    def show_help(context: click.Context) -> None:
        if context.invoked_subcommand is None:
            click.echo(context.get_help(), err=True)
            context.exit(WRONG_USAGE)

    kind: type[click.Group] = settings.pop("cls", SuggestingGroup)
    return kind(name, callback=show_help, help=about, invoke_without_command=True, **settings)


def _show_version(context: click.Context, _: click.Parameter, asked: bool) -> None:
    if asked and not context.resilient_parsing:
        from turbopump.compiled import KIND

        click.echo(f"turbopump {__version__}, {KIND}")
        context.exit()


turbopump = click.option(
    "--version",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_show_version,
    help="Show the version, and whether compiled functions run; then exit.",
)(
    command_group(
        "turbopump",
        "Apache RocketMQ in Python: name server, broker, producer and consumer.",
        epilog=f"Documentation: {SITE}",
        cls=MainGroup,
        places={name: (f"turbopump.cli.{name}", "command") for name in COMMANDS},
        context_settings={
            "help_option_names": ["-h", "--help"],
            "show_default": True,
            "max_content_width": 100,
        },
    )
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    If `_TURBOPUMP_COMPLETE` is set, the call answers a shell that completes a line
    (docs/reference/cli.md) and raises SystemExit.
    """
    _open_closed_descriptors()
    _write_what_the_terminal_has_not()
    try:
        code = turbopump.main(arguments, prog_name="turbopump", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except click.UsageError as error:
        where = error.ctx.command_path if error.ctx is not None else "turbopump"
        sentence = _sentence(error.format_message())
        see = " See" if sentence.endswith("?") else "; see"
        return _failed(f"{where}: {sentence}{see} {where} --help", WRONG_USAGE)
    except ConfigError as error:
        return _failed(f"turbopump: {_sentence(str(error))}", WRONG_USAGE)
    except click.ClickException as error:
        return _failed(f"turbopump: {_sentence(error.format_message())}", error.exit_code)
    except click.Abort:
        return INTERRUPTED
    except NotFoundError as error:
        return _failed(f"turbopump: {_sentence(cause(error))}", NOT_FOUND)
    except (TurbopumpError, OSError) as error:
        return _failed(f"turbopump: {_sentence(cause(error))}", INCOMPLETE)


def _failed(sentence: str, code: int) -> int:
    click.echo(sentence, err=True)
    return code


def complain(sentence: str) -> None:
    """Write a warning to standard error."""
    click.echo(f"turbopump: {sentence}", err=True)


def cause(error: Exception) -> str:
    """Return the text of an error, without Python's error numbers and class names."""
    if isinstance(error, OSError) and error.strerror:
        if error.filename:
            return f"{error.filename}: {error.strerror}"
        return error.strerror
    if not str(error):
        return type(error).__name__
    return "; ".join((str(error), *getattr(error, "__notes__", ())))


def _sentence(text: str) -> str:
    text = text.replace("is not a valid integer range", "is not a whole number").replace(
        "is not a valid float range", "is not a number"
    )
    return " ".join(text.split()).removesuffix(".")


def _open_closed_descriptors() -> None:
    """Open those standard streams that are closed when this process starts.

    Some daemon starters close them. Otherwise sockets and files would get the numbers of these
    streams, and uvloop aborts.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)
            assert opened == number, "using the lowest free number"


def _write_what_the_terminal_has_not() -> None:
    r"""Make output work if the terminal's character set lacks some of the characters.

    Such a character is written as an escape (``\u8ba2``).
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="backslashreplace")


def drop_output() -> None:
    """Discard unwritten output. Call this when the reader of standard output is gone.

    Otherwise the interpreter reports an error when it flushes standard output at exit.
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
