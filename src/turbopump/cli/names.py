"""Names of topics, groups and brokers on the command line. A shell completes them.

The subject of a command is its argument or, as with mqadmin, its option: `topic show orders` and
`topic show -t orders` are the same. `-t`, `-g` and `-b` mean the same in every command.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from turbopump.cli.values import checked_group, checked_topic

if TYPE_CHECKING:
    from turbopump.admin.cluster import Servers

T = TypeVar("T")
Decorator = Callable[[Callable[..., T]], Callable[..., T]]
Check = Callable[[click.Context, click.Parameter, str | None], str | None]
Complete = Callable[[click.Context, click.Parameter, str], list[str]]

COMPLETION_S: Final = 2.0
"""Maximum seconds that a shell waits for names."""


def topic_subject(name: str = "topic") -> Decorator[Any]:
    """Return a decorator for a command about one topic, the parameter ``name``."""
    return _subject(name, "-t", "--topic", checked_topic, complete_topics)


def group_subject(name: str = "group") -> Decorator[Any]:
    """Return a decorator for a command about one group, the parameter ``name``."""
    return _subject(name, "-g", "--group", checked_group, complete_groups)


def broker_subject(name: str = "broker") -> Decorator[Any]:
    """Return a decorator for a command about one broker, the parameter ``name``: a `brokerName`,
    `brokerName:ID` or `HOST:PORT`."""
    return _subject(name, "-b", "--broker", _checked_broker, complete_brokers)


def topic_option(about: str, *, required: bool = False) -> Decorator[Any]:
    """Return a decorator that adds the option `-t`, which names a topic."""
    return _option("-t", "--topic", checked_topic, complete_topics, about, required)


def group_option(about: str, *, required: bool = False) -> Decorator[Any]:
    """Return a decorator that adds the option `-g`, which names a consumer group."""
    return _option("-g", "--group", checked_group, complete_groups, about, required)


def broker_option(about: str, *, required: bool = False) -> Decorator[Any]:
    """Return a decorator that adds the option `-b`, which names a broker as ``broker_subject``
    does."""
    return _option("-b", "--broker", _checked_broker, complete_brokers, about, required)


def _option(
    short: str, long: str, check: Check, complete: Complete, about: str, required: bool
) -> Decorator[Any]:
    return click.option(
        short,
        long,
        metavar=_metavar(long),
        required=required,
        callback=check,
        shell_complete=complete,
        help=about,
    )


def _metavar(long: str) -> str:
    return long.removeprefix("--").upper()


async def broker_names(servers: Servers) -> dict[str, str]:
    """Return the name of each broker by its address: `NAME` for a master, `NAME:ID` for a slave."""
    from turbopump.admin.brokers import Brokers  # most commands do without

    return {one.address: one.label for one in await Brokers(servers).list()}


def _checked_broker(
    _context: click.Context, _parameter: click.Parameter, broker: str | None
) -> str | None:
    if broker is not None and any(each in ";," or each.isspace() for each in broker):
        raise click.BadParameter(
            f"{broker!r} is not one broker: expected its name, NAME:ID or HOST:PORT"
        )
    return broker


class SubjectCommand(click.Command):
    """Command with subjects. If an option gives a subject, the command line has no argument for it:
    `message by-id -t orders ID`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        words = args[: args.index("--")] if "--" in args else args
        for option in self.params:
            if isinstance(option, _SubjectOption) and any(map(option.is_given_by, words)):
                ctx.meta.setdefault(_GIVEN, set()).add(option.subject)
        return super().parse_args(ctx, args)


_GIVEN: Final = "turbopump.subjects"


class _SubjectOption(click.Option):
    @property
    def subject(self) -> str:
        """Name of the argument that this option stands for."""
        assert self.name is not None
        return self.name.removesuffix("_option")

    def is_given_by(self, word: str) -> bool:
        """Return True if a word of the command line is this option, with or without its value."""
        short, long = self.opts
        return word == long or word.startswith((short, f"{long}="))


class _SubjectArgument(click.Argument):
    def add_to_parser(self, parser: Any, ctx: click.Context) -> None:
        if self.name not in ctx.meta.get(_GIVEN, ()):
            super().add_to_parser(parser, ctx)


def _subject(name: str, short: str, long: str, check: Check, complete: Complete) -> Decorator[Any]:
    word = _metavar(long)

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        def called(*arguments: Any, **options: Any) -> Any:
            found = options.pop(f"{name}_option") or options[name]
            if found is None:
                raise click.UsageError(f"Missing argument '{word}'")
            options[name] = found
            return function(*arguments, **options)

        called.__doc__ = function.__doc__
        called.__name__ = function.__name__
        called.__click_params__ = getattr(function, "__click_params__", [])  # type: ignore[attr-defined]
        argument = click.argument(
            name,
            metavar=word,
            required=False,
            callback=check,
            shell_complete=complete,
            cls=_SubjectArgument,
        )
        option = click.option(
            short,
            long,
            f"{name}_option",
            metavar=word,
            callback=check,
            shell_complete=complete,
            help=f"The same as the argument {word}.",
            cls=_SubjectOption,
        )
        return argument(option(called))

    return decorate


# A shell calls these functions at each press of the tab key. A cluster that does not answer gives
# no names, and no error.


def complete_topics(
    context: click.Context, _parameter: click.Parameter, incomplete: str
) -> list[str]:
    """Return the topics of users that begin with ``incomplete``."""

    async def names(servers: Any) -> list[str]:
        from turbopump.admin.topics import topic_names, users_topics

        return users_topics(await topic_names(servers), await servers.brokers())

    return _completed(context, incomplete, names)


def complete_groups(
    context: click.Context, _parameter: click.Parameter, incomplete: str
) -> list[str]:
    """Return the consumer groups that begin with ``incomplete``."""

    async def names(servers: Any) -> list[str]:
        from turbopump.admin.groups import group_names

        return await group_names(servers, await servers.masters())

    return _completed(context, incomplete, names)


def complete_brokers(
    context: click.Context, _parameter: click.Parameter, incomplete: str
) -> list[str]:
    """Return the names of brokers that begin with ``incomplete``."""

    async def names(servers: Any) -> list[str]:
        return sorted((await servers.brokers()).broker_addr_table)

    return _completed(context, incomplete, names)


def _completed(
    context: click.Context, incomplete: str, names: Callable[[Any], Coroutine[Any, Any, list[str]]]
) -> list[str]:
    from turbopump.admin.cluster import Servers
    from turbopump.cli.frame import default_name_servers, who_and_how
    from turbopump.errors import TurbopumpError

    async def ask() -> list[str]:
        addresses = context.params.get("namesrv") or default_name_servers()
        async with Servers(addresses, **who_and_how(context)) as servers:
            return await asyncio.wait_for(names(servers), COMPLETION_S)

    try:
        return [name for name in asyncio.run(ask()) if name.startswith(incomplete)]
    except (TurbopumpError, OSError, TimeoutError):
        return []
