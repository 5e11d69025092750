"""`turbopump offset show|reset|clone`: where groups stand, and putting them elsewhere."""

from typing import Any, NoReturn

import click

from turbopump.cli.cluster import (
    NOT_FOUND,
    ask_each,
    checked_address,
    masters,
    name_server_option,
    show,
    with_client,
)
from turbopump.cli.message import TimeOption
from turbopump.cli.serving import log_options, start_log
from turbopump.cli.topic import output_option
from turbopump.errors import RemotingError
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.requests.consumers import GetConsumeStats
from turbopump.protocol.requests.offsets import CloneGroupOffset, ResetOffset, ResetOffsetBody
from turbopump.protocol.requests.statistics import ConsumeStats
from turbopump.remoting.client import RemotingClient

END = -1


@click.group(name="offset", invoke_without_command=True)
@click.pass_context
def command(context: click.Context) -> None:
    """Show, reset and clone the places of consumer groups."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help(), err=True)
        context.exit(2)


@command.command(name="show", short_help="Where a group stands in each queue.")
@click.argument("group")
@name_server_option
@click.option("--topic", metavar="NAME", help="Only in this topic.")
@output_option
@log_options("warning")
def show_offsets(
    group: str,
    namesrv: list[str],
    topic: str | None,
    output: str,
    log_level: str,
    log_file: str | None,
) -> None:
    """Show where a group stands in each queue, and how far behind it is. Exit code 3 if it stands
    nowhere."""
    start_log(log_level, log_file)

    async def work(client: RemotingClient) -> None:
        rows = await places(client, await masters(client, namesrv), group, topic)
        behind = sum(row["behind"] for row in rows)
        lines = [
            f"{row['topic']}  {row['broker']}:{row['queue']}  at {row['offset']}  end "
            f"{row['end']}  behind {row['behind']}"
            for row in rows
        ]
        show(
            output,
            {"group": group, "behind": behind, "queues": rows},
            [*lines, f"behind by {behind} in all"] if rows else [],
        )
        if not rows:
            stands_nowhere(group, topic)

    with_client(work)


@command.command(name="reset", short_help="Put a group elsewhere in a topic.")
@click.argument("group")
@click.argument("topic")
@name_server_option
@click.option("--begin", is_flag=True, help="Go to the first message that is kept.")
@click.option("--end", is_flag=True, help="Go behind the last message.")
@click.option(
    "--time",
    "time_ms",
    metavar="TIME",
    type=TimeOption(),
    help="Go to the first message from this time on.",
)
@click.option("--offset", type=click.IntRange(0), help="Go there; with --queue and --broker.")
@click.option("--queue", type=click.IntRange(0), help="Only the queue with this id.")
@click.option("--broker", metavar="ADDR", callback=checked_address, help="Only on this broker.")
@click.option("--only-back", is_flag=True, help="Leave alone what stands further back already.")
@output_option
@log_options("warning")
def reset_offsets(
    group: str,
    topic: str,
    namesrv: list[str],
    begin: bool,
    end: bool,
    time_ms: int | None,
    offset: int | None,
    queue: int | None,
    broker: str | None,
    only_back: bool,
    output: str,
    log_level: str,
    log_file: str | None,
) -> None:
    """Set the place of a group in a topic; running consumers go on there at once."""
    if [begin, end, time_ms is not None, offset is not None].count(True) != 1:
        raise click.UsageError("give one of --begin, --end, --time, --offset")
    if offset is not None and (queue is None or broker is None):
        raise click.UsageError("--offset is of one queue: give --queue and --broker too")
    start_log(log_level, log_file)
    timestamp = END if end else 0 if begin else time_ms if time_ms is not None else END
    wanted = ResetOffset(
        group=group,
        topic=topic,
        timestamp=timestamp,
        force=not only_back,
        queue_id=-1 if queue is None else queue,
        offset=offset,
    )

    async def work(client: RemotingClient) -> None:
        addresses = [broker] if broker is not None else await masters(client, namesrv)
        absent = (
            (ResponseCode.TOPIC_NOT_EXIST, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST)
            if broker is None
            else ()
        )
        answers = await ask_each(client, addresses, wanted, ResetOffsetBody, *absent)
        if not answers:
            raise RemotingError(
                f"no broker has both the group {group} and the topic {topic}; "
                "see turbopump consumer list and turbopump topic list, and start a consumer of a "
                "new group once"
            )
        rows = [
            {"topic": topic, "broker": at.broker_name, "queue": at.queue_id, "offset": place}
            for body in answers.values()
            for at, place in sorted(body.offset_table.items())
        ]
        lines = [
            f"{row['topic']}  {row['broker']}:{row['queue']}  at {row['offset']}" for row in rows
        ]
        show(output, {"group": group, "queues": rows}, lines)

    with_client(work)


@command.command(name="clone", short_help="Put a group where another one stands.")
@click.argument("source")
@click.argument("target")
@name_server_option
@click.option("--topic", metavar="NAME", help="Only in this topic.")
@output_option
@log_options("warning")
def clone_offsets(
    source: str,
    target: str,
    namesrv: list[str],
    topic: str | None,
    output: str,
    log_level: str,
    log_file: str | None,
) -> None:
    """Put the group TARGET, which must exist, where the group SOURCE stands."""
    if source == target:
        raise click.UsageError(f"SOURCE and TARGET are both {source}")
    start_log(log_level, log_file)
    wanted = CloneGroupOffset(src_group=source, dest_group=target, topic=topic, offline=True)

    async def work(client: RemotingClient) -> None:
        addresses = await masters(client, namesrv)
        if not await places(client, addresses, source, topic):
            stands_nowhere(source, topic)
        for address in addresses:
            answer = await client.exchange(address, wanted)
            if answer.code != ResponseCode.SUCCESS:
                raise RemotingError(
                    f"broker {address}: {(answer.remark or f'code {answer.code}').strip()}"
                )
        rows = await places(client, addresses, target, topic)
        lines = [
            f"{row['topic']}  {row['broker']}:{row['queue']}  at {row['offset']}" for row in rows
        ]
        show(output, {"group": target, "queues": rows}, lines)

    with_client(work)


def stands_nowhere(group: str, topic: str | None = None) -> NoReturn:
    """Say that a group has no place anywhere, or in a topic, and end with the exit code for it: its
    name may be mistyped."""
    where = "in any topic" if topic is None else f"in the topic {topic}"
    click.echo(
        f"turbopump: the group {group} has no place {where}; turbopump consumer list "
        "shows the groups",
        err=True,
    )
    raise SystemExit(NOT_FOUND)


async def places(
    client: RemotingClient, addresses: list[str], group: str, topic: str | None = None
) -> list[dict[str, Any]]:
    """Where a group stands, queue by queue, in order. Raises RemotingError."""
    answers = await ask_each(
        client, addresses, GetConsumeStats(consumer_group=group, topic=topic), ConsumeStats
    )
    table = {
        queue: stands for body in answers.values() for queue, stands in body.offset_table.items()
    }
    return [
        {
            "topic": queue.topic,
            "broker": queue.broker_name,
            "queue": queue.queue_id,
            "offset": stands.consumer_offset,
            "end": stands.broker_offset,
            "behind": stands.broker_offset - stands.consumer_offset,
            "last_timestamp": stands.last_timestamp,
        }
        for queue, stands in sorted(table.items())
    ]
