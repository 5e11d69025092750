"""Reading exactly the messages of an offset range, as raw stored bytes in chunks.

The one rule: the same range gives the same messages whenever it is read, or it says that it cannot:
each is checked (its CRC), and each offset of the range must be there. It must not know how messages
are decoded into rows or what Spark is.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Final

from turbopump.errors import ClientError
from turbopump.message.checked import DamagedEntry, good_entries
from turbopump.message.inner_batch import is_wrapped, unwrapped
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.requests.pull import PullMessageReply
from turbopump.spark.cluster import Cluster
from turbopump.spark.ranges import OffsetRange

CHUNK_ROWS_MAX: Final = 10_000
CHUNK_SIZE_MAX: Final = 4 << 20
"""A chunk is handed on once it has this many messages or bytes: large enough to make vectors pay,
small enough for the JVM."""

PULLS_MAX: Final = 16
PULLED_ROWS_MAX: Final = 2048
"""So many pulls, or messages, are asked for at once."""

_log = logging.getLogger(__name__)


class DataLossError(ClientError):
    """Messages of an asked range are no longer (or not) in the broker, or are damaged."""


def read_range(
    cluster: Cluster,
    wanted: OffsetRange,
    *,
    pull_batch_size: int,
    pull_timeout_ms: int,
    fail_on_data_loss: bool,
) -> Iterator[bytearray]:
    """The stored messages from ``wanted.begin`` up to ``wanted.end``, back to back. The last chunk
    may hold a few beyond the end.

    The end is expected to have been seen already; a broker that does not show it within
    ``pull_timeout_ms`` counts as loss. Messages that are gone raise DataLossError, or are skipped
    with a warning where ``fail_on_data_loss`` is false.
    """
    chunk, rows, offset = bytearray(), 0, wanted.begin
    step, depth = pull_batch_size, 1
    while offset < wanted.end:
        # A broker gives few messages per pull (Apache's 32), but it says which come next: so one
        # pull finds out how many, and then several go out together, each for as many. Those behind
        # one that falls short do not join on, and are asked again.
        begins = range(offset, wanted.end, step)[:depth]
        asked = [(begin, min(step, wanted.end - begin)) for begin in begins]
        for begin, answer in zip(
            begins, cluster.pull(wanted.queue, asked, hold_ms=pull_timeout_ms), strict=True
        ):
            if begin != offset:
                break
            places = answer.header(PullMessageReply)
            if answer.code == ResponseCode.SUCCESS and places.next_begin_offset > offset:
                chunk += _whole(
                    wanted, offset, places.next_begin_offset, answer.body, fail_on_data_loss
                )
                offset = places.next_begin_offset
            else:
                offset = _after_gap(wanted, offset, places, fail_on_data_loss)
            given = offset - begin
        rows += offset - begins[0]
        if len(chunk) >= CHUNK_SIZE_MAX or rows >= CHUNK_ROWS_MAX:
            yield chunk
            chunk, rows = bytearray(), 0
            step, depth = pull_batch_size, 1
        elif offset < begins[-1] + step and depth > 1:
            step, depth = min(given, step), depth // 2
        else:
            step = min(given, step)
            depth = max(1, min(PULLS_MAX, PULLED_ROWS_MAX // step))
    if chunk:
        yield chunk


def _whole(wanted: OffsetRange, begin: int, end: int, body: bytes, fail: bool) -> bytes:
    """The good messages of an answer that should hold those from ``begin`` to ``end``; what else
    should be there is loss."""
    damaged: list[DamagedEntry] = []
    entries = list(good_entries(body, damaged.append))
    if (
        not damaged
        and len(entries) == end - begin
        and not any(is_wrapped(entry[39]) for entry in entries)
    ):
        return body
    there = {int.from_bytes(one[20:28]) for entry in entries for one in unwrapped(entry)}
    missing = [offset for offset in range(begin, min(end, wanted.end)) if offset not in there]
    if missing:
        cause = damaged[0].fault if damaged else "the broker has passed them over: its log says why"
        text = (
            f"{wanted.queue}: damaged in the broker's store: offsets "
            f"{', '.join(map(str, missing))} ({cause})"
        )
        if fail:
            raise DataLossError(
                f"{text}. Set the option failOnDataLoss to false to go on without them"
            )
        _log.warning("%s; skipped, as failOnDataLoss is false", text)
    return b"".join(entries)


def _after_gap(wanted: OffsetRange, offset: int, places: PullMessageReply, fail: bool) -> int:
    """Where to go on when there is nothing at an offset: 19 nothing yet, 20 all of it removed, 21
    outside the queue."""
    go_on = max(places.next_begin_offset, places.min_offset)
    if go_on <= offset:
        go_on = wanted.end
    _lost(wanted, offset, min(go_on, wanted.end), places, fail)
    return go_on


def _lost(wanted: OffsetRange, begin: int, end: int, places: PullMessageReply, fail: bool) -> None:
    text = (
        f"{wanted.queue}: messages {begin} to {end - 1} of the asked {wanted.begin} to "
        f"{wanted.end - 1} are not there: "
        f"the queue now holds {places.min_offset} to {places.max_offset - 1}"
    )
    if fail:
        raise DataLossError(
            f"{text}. They were deleted (retention), or the topic or broker was made anew. Set "
            "the option failOnDataLoss to false "
            "to go on without them, or give startingOffsets that exist (and a new checkpoint)"
        )
    _log.warning("%s; skipped, as failOnDataLoss is false", text)
