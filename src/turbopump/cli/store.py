"""`turbopump store inspect|verify|dump DIR`: reading of a store directory, without changes.

A broker may be running on the store meanwhile. `set-apart` is different: it changes the directory,
and no broker may use the store.

Exit codes: 0 no damage, 1 damage was found, 2 unreadable or wrong usage, 3 not in the store.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, Final

import click

from turbopump.cli.entry import NOT_FOUND, cause, command_group, complain
from turbopump.cli.frame import FORMS, WITHOUT_CSV, RowStream, hex_lines, output_option, show
from turbopump.cli.json_lines import MESSAGE_COLUMNS, body_or_stored, message_row
from turbopump.cli.log_output import log_options
from turbopump.cli.tables import BYTES, TIME, Column, Table, size_text
from turbopump.cli.values import time_text
from turbopump.config.system import require_unix
from turbopump.disk.read_only_disk import ReadOnlyDisk
from turbopump.errors import StoreError
from turbopump.message.message import ReceivedMessage
from turbopump.message.rules import did_you_mean
from turbopump.protocol import fastjson
from turbopump.store import inspection
from turbopump.store.files import StorePaths
from turbopump.store.inspection.next_start import topics_known
from turbopump.store.repair.setting_apart import SettingApart, set_apart

DAMAGED: Final = 1
UNREADABLE: Final = 2
RAW_SIZE: Final = 256
"""Number of bytes shown if the length of an entry is unknown."""
SEGMENTS: Final = (
    Column("file"),
    Column("size", unit=BYTES),
    Column("first_stored_ms", "first message", TIME),
)
QUEUES: Final = (
    Column("topic"),
    Column("queue_id", "queue"),
    Column("min_index", "first"),
    Column("max_index", "end"),
    Column("files"),
)
INDEXES: Final = (
    Column("file"),
    Column("entries"),
    Column("entries_max", "room for"),
    Column("slots_used"),
    Column("slots", "slots"),
    Column("begin_offset", "first offset"),
    Column("end_offset", "last offset"),
    Column("begin_ms", "first message", TIME),
    Column("end_ms", "last message", TIME),
)
FINDINGS: Final = tuple(
    Column(key)
    for key in (
        "kind",
        "damage",
        "file",
        "offset",
        "end",
        "topic",
        "queue_id",
        "index",
        "count",
        "what",
    )
)
TABLES: Final = (Column("file"), Column("size", unit=BYTES), Column("entries"))


command = command_group(
    "store",
    "Inspect and verify a store directory, and read its messages. Only set-apart changes anything.",
)


def _store_options(
    run: Callable[..., int], default: str = "table", forms: Sequence[str] = FORMS
) -> Callable[..., None]:
    """Turn a function into a store command, with the common options of all store commands.

    The function gets the paths of the store and returns the exit code. ``default`` and ``forms``
    are those of the option --output.
    """

    @functools.wraps(run)
    def wrapped(
        directory: Path,
        commit_log: str,
        consume_queue: Path | None,
        index: Path | None,
        checkpoint: Path | None,
        abort: Path | None,
        **more: Any,
    ) -> None:
        require_unix("turbopump store")
        roots = tuple(
            dict.fromkeys(Path(part.strip()) for part in commit_log.split(",") if part.strip())
        )
        try:
            if not directory.is_dir():
                raise StoreError(f"{directory} is not a directory")
            for given in (*roots, consume_queue, index):
                if given is not None and not given.is_dir():
                    raise StoreError(f"{given} is not a directory")
            if checkpoint is not None and not checkpoint.is_file():
                raise StoreError(f"{checkpoint} is not a file")
            code = run(
                StorePaths(directory, roots, (), consume_queue, index, checkpoint, abort), **more
            )
        except BrokenPipeError:
            raise
        except (StoreError, OSError) as error:
            complain(cause(error))
            code = UNREADABLE
        click.get_current_context().exit(code)

    def path_option(name: str, metavar: str, what: str, key: str, usual: str) -> Any:
        about = f"{what} ({key}).  [default: DIR/{usual}]"
        return click.option(name, metavar=metavar, type=click.Path(path_type=Path), help=about)

    decorators = (
        click.argument("directory", metavar="DIR", type=click.Path(path_type=Path)),
        click.option(
            "--commit-log",
            metavar="DIRS",
            default="",
            show_default=False,
            help="Directories of the segments, separated by commas (storePathCommitLog).  "
            "[default: DIR/commitlog]",
        ),
        path_option(
            "--consume-queue",
            "DIR",
            "Directory of the queues",
            "storePathConsumeQueue",
            "consumequeue",
        ),
        path_option("--index", "DIR", "Directory of the index files", "storePathIndex", "index"),
        path_option(
            "--checkpoint", "FILE", "File of the checkpoint", "storeCheckpoint", "checkpoint"
        ),
        path_option("--abort", "FILE", "File that marks an unclean stop", "abortFile", "abort"),
        output_option(default=default, forms=forms),
        log_options("warning", plain=True),
    )
    command: Callable[..., None] = wrapped
    for decorator in reversed(decorators):
        command = decorator(command)
    return command


@command.command(name="inspect", short_help="Contents of a store directory.")
@_store_options
def inspect_directory(paths: StorePaths, output: str) -> int:
    """Show what the store at DIR holds: segments, queues, indexes, checkpoint, tables."""
    summary = inspection.inspect_store(
        paths, read_table=fastjson.parse, log_roots=paths.commit_logs
    )
    show(output, summary.as_json(), _summary_parts(summary))
    return DAMAGED if summary.findings.damaged else 0


@command.command(name="verify", short_help="Check every message, queue and index.")
@click.option(
    "--findings",
    "findings_max",
    type=click.IntRange(0),
    default=1000,
    help="Maximum number of findings shown.",
)
@_store_options
def verify_directory(paths: StorePaths, output: str, findings_max: int) -> int:
    """Check the store at DIR: every message's CRC, and the log against queues, indexes and
    tables."""
    with _progress("checking") as on_progress:
        result = inspection.verify_store(
            paths,
            read_table=fastjson.parse,
            log_roots=paths.commit_logs,
            findings_max=findings_max,
            on_progress=on_progress,
        )
    show(output, result.as_json(), _verification_parts(result, output))
    return 0 if result.clean else DAMAGED


@command.command(name="dump", short_help="Write messages as JSON lines.")
@click.option("-t", "--topic", metavar="TOPIC", help="Only messages of this topic.")
@click.option("--queue", "queue_id", type=click.IntRange(0), help="Only messages of this queue.")
@click.option(
    "--from",
    "start",
    type=click.IntRange(0),
    default=0,
    help="Begin at this queue offset if --topic is given, else at this offset of the log.",
)
@click.option(
    "--count", type=click.IntRange(1), help="End after this number of messages.  [default: all]"
)
@click.option(
    "--keys",
    metavar="KEY",
    multiple=True,
    help="Only messages with this key or unique id; may be given again.",
)
@click.option(
    "--hex",
    "raw_offset",
    metavar="OFFSET",
    type=click.IntRange(0),
    help="Show the raw bytes of the entry at this offset.",
)
@functools.partial(_store_options, default="json")
def dump_messages(
    paths: StorePaths,
    output: str,
    topic: str | None,
    queue_id: int | None,
    start: int,
    count: int | None,
    keys: tuple[str, ...],
    raw_offset: int | None,
) -> int:
    """Write messages of the store at DIR as JSON lines, like `turbopump consume`, oldest first."""
    disk = ReadOnlyDisk()
    findings = inspection.Findings()
    store = inspection.list_store(disk, paths, findings, paths.commit_logs)
    running = inspection.read_run_state(disk, paths, findings).running
    for finding in findings.kept:
        click.echo(_finding_line(finding), err=True)
    if raw_offset is not None:
        return _dump_raw(
            *inspection.read_raw(disk, store, raw_offset, RAW_SIZE), raw_offset, output
        )
    damaged = findings.damaged

    def bad(found: inspection.BadRange) -> None:
        nonlocal damaged
        if found.tail and running:
            return  # the broker is writing this entry
        damaged = True
        complain(f"passed over offset {found.start}–{found.end} of the log: {found.fault}")

    wanted = inspection.Selection(topic, queue_id, start, keys)
    written = 0
    rows = RowStream(output, (*MESSAGE_COLUMNS, Column("commit_log_offset")))
    for message in islice(inspection.select_messages(disk, store, wanted, bad), count):
        _, fault = body_or_stored(message)
        if fault is not None:
            damaged = True
            complain(f"{fault}; writing the stored bytes")
        where = {"commit_log_offset": message.commit_log_offset}
        rows.write(message_row(message, where), [_text_line(message)])
        written += 1
    topics = {name for name, _ in store.queues} | store.batch_topics
    topics |= topics_known(disk, paths, fastjson.parse).keys()
    if topic is not None and not written and topic not in topics and topics:
        complain(
            f"the store has no topic {topic}{did_you_mean(topic, topics)}; turbopump "
            "store inspect lists its topics"
        )
        return DAMAGED if damaged else NOT_FOUND
    return DAMAGED if damaged else 0


@command.command(
    name="set-apart",
    short_help="Move an unreadable part of the log aside, so that the store can start.",
)
@click.option("--dry-run", is_flag=True, help="Change nothing, only list the losses.")
@functools.partial(_store_options, forms=WITHOUT_CSV)
def set_unreadable_apart(paths: StorePaths, output: str, dry_run: bool) -> int:
    """Replace each segment of the store at DIR that the disk cannot read completely by a copy, with
    zeros for the unreadable parts. The originals are kept."""
    from turbopump.disk.system_disk import SystemDisk

    with _progress("reading") as on_progress:
        found = set_apart(paths, SystemDisk(), dry_run=dry_run, on_progress=on_progress)
    show(output, found.as_json(), _set_apart_lines(found, dry_run=dry_run))
    return DAMAGED if found.ranges or found.missing else 0


@contextmanager
def _progress(label: str) -> Iterator[Callable[[int, int], None]]:
    """Show a progress bar on standard error. Yield a function that moves the bar.

    The arguments of the function are the bytes done and the total bytes. If standard error is not a
    terminal, there is no bar and the function does nothing.
    """
    if not sys.stderr.isatty():
        yield lambda _done, _size: None
        return
    with click.progressbar(length=1000, label=label, file=sys.stderr) as bar:
        # The bar counts steps, not positions.
        yield lambda done, size: bar.update(done * 1000 // max(size, 1) - bar.pos)


def _summary_parts(summary: inspection.StoreSummary) -> list[str | Table]:
    """Return the content of a store as tables, each below a line with its subject."""
    found = summary.as_json()
    for index in found["indexes"]:
        index |= {key: index[key] or None for key in ("slots", "begin_ms", "end_ms")}
    for table in found["tables"]:
        if table["entries"] is None:
            table["entries"] = "cannot be read"
    size = size_text(summary.log_end - summary.log_start)
    return [
        f"store {summary.root}",
        f"log {summary.log_start}–{summary.log_end} ({size})",
        Table(SEGMENTS, found["log"]["segments"]),
        "",
        f"queues {len(summary.queues)}",
        Table(QUEUES, found["queues"]),
        "",
        f"indexes {len(summary.indexes)}",
        Table(INDEXES, found["indexes"]),
        "",
        f"tables {len(summary.tables)}",
        Table(TABLES, found["tables"]),
        "",
        _checkpoint_line(summary),
        f"abort file {'present' if summary.state.abort else 'none'}",
        _lock_line(summary),
        *_finding_lines(summary.findings),
    ]


def _checkpoint_line(summary: inspection.StoreSummary) -> str:
    point = summary.checkpoint
    if point is None:
        return "checkpoint none"
    return (
        f"checkpoint log {_time(point.log_timestamp)}  queues {_time(point.queues_timestamp)}  "
        f"index {_time(point.index_timestamp)}  confirmed {point.confirmed_offset}"
    )


def _lock_line(summary: inspection.StoreSummary) -> str:
    holder = summary.state.lock.pid
    if not summary.state.running:
        return "lock free"
    if holder is None:
        return "lock held"
    return f"lock held by process {holder}"


def _verification_parts(result: inspection.Verification, output: str) -> Iterator[str | Table]:
    if output == "csv":
        yield Table(FINDINGS, result.as_json()["findings"])
    yield from _finding_lines(result.findings)
    yield (
        f"log {result.log_start}–{result.log_end}: {result.messages} messages in {result.segments} "
        f"segments; {result.units} units in {result.queues} queues; {result.index_entries} entries "
        f"in {result.index_files} indexes; {result.tables} tables"
    )
    damage = sum(
        count for kind, count in result.findings.counts.items() if inspection.KINDS[kind].damage
    )
    yield "clean" if result.clean else f"damaged: {damage} faults"


def _set_apart_lines(found: SettingApart, *, dry_run: bool) -> Iterator[str]:
    for missing in found.missing:
        yield f"missing {missing}"
    for unread in found.ranges:
        yield f"unreadable {unread.path} offset {unread.start}–{unread.end}: {unread.cause}"
    for lost in found.lost:
        yield f"lost {lost.topic}/{lost.queue_id}  {lost.first}–{lost.end}"
    for path in found.unread_queues:
        yield f"notice {path} cannot be read whole: more messages may be lost"
    if found.ranges and found.at_the_end:
        yield (
            f"notice no message can be read behind offset {found.readable_end}: the next "
            "start ends the log there, and reuses the offsets of messages behind it"
        )
    for path, original in found.kept.items():
        yield f"kept {original}: {path} is a copy now, with zeros where it cannot be read"
    if not found.ranges:
        what = "the rest of the log" if found.missing else "all of the log"
        yield f"{what} can be read ({size_text(found.log_size)}); nothing was changed"
        return
    size = sum(one.end - one.start for one in found.ranges)
    messages = sum(one.end - one.first for one in found.lost)
    done = f"segments replaced {len(found.kept)}"
    if dry_run:
        done = "nothing was changed"
    part = f"{size_text(size)} of {size_text(found.log_size)}"
    yield f"unreadable {part}; messages lost {messages}; {done}"


def _finding_lines(findings: inspection.Findings) -> Iterator[str]:
    for finding in findings.kept:
        yield _finding_line(finding)
    if findings.dropped:
        yield f"… and {findings.dropped} more (--findings)"


def _finding_line(finding: inspection.Finding) -> str:
    level = "damage" if finding.damage else "notice"
    line = f"{level} {finding.kind}: {finding.where}: {finding.what}"
    if finding.count > 1:
        line += f" ({finding.count} in a row; the first is described)"
    return line


def _text_line(message: ReceivedMessage) -> str:
    named = ""
    if message.tags:
        named += f" tags={message.tags}"
    if message.keys:
        named += f" keys={' '.join(message.keys)}"
    return (
        f"{message.commit_log_offset} {message.topic}/{message.queue_id} {message.queue_offset} "
        f"{_time(message.store_timestamp)} {message.msg_id}{named} "
        f"{body_or_stored(message)[0]!r}"
    )


def _dump_raw(data: bytes, fault: str | None, offset: int, output: str) -> int:
    fields = {"offset": offset, "size": len(data), "fault": fault, "hex": data.hex()}
    show(output, fields, (f"{offset + at:020d}  {line}" for at, line in hex_lines(data)))
    if fault is not None:
        complain(f"no valid message at offset {offset}: {fault}")
    if not data:
        return NOT_FOUND
    return DAMAGED if fault is not None else 0


def _time(ms: int) -> str:
    return "never" if ms == 0 else time_text(ms)
