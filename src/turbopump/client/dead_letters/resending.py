"""Resending of dead letters. Each is sent once, despite kills of this process, lost answers and a
second operator.

These steps are repeated for some letters at a time:

- Read new messages in the targets, and search the targets for the letters' ids.
- Write the target of each letter to the journal, and sync.
- Send each letter, with one attempt.
- Write the answers to the journal.

A letter without an answer is searched for in its queue before it is sent again. If this run is
killed, the next run does that at its start. One rule: no letter is sent while it is in doubt.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from turbopump import errors
from turbopump.client.dead_letters import target
from turbopump.client.dead_letters.dead_letter import (
    DeadLetter,
    DeadLetters,
    InDoubt,
    LetterFilter,
    ResendTo,
)
from turbopump.client.dead_letters.journal import (
    Journal,
    ResendAim,
    journal_path,
    read_journal,
    read_unlocked,
)
from turbopump.client.instance import ClientInstance
from turbopump.client.sent_already import SentAlready
from turbopump.client.setting_rules import (
    FUNCTION,
    SECONDS_OR_0,
    SettingRule,
    is_a,
    is_name,
    is_seconds,
)
from turbopump.client.user_function import is_coroutine_function
from turbopump.message.message import MessageQueue
from turbopump.protocol.codes import ResponseCode

log = logging.getLogger(__name__)

FIRST_STEPS: Final = (1, 8)
"""Numbers of letters in the first batches. They are small so that two operators who start together
notice each other after one letter."""
STEP: Final = 64
AIMED_AHEAD_S: Final = 0.25
"""Maximum time in seconds between writing a letter's target to the journal and sending the letter,
if there is a rate."""
ROUNDS: Final = 4
SETTLE_S: Final = 3.0
"""Time in seconds after the send from which a letter that is not in its queue is considered
lost."""

_GROUP: Final = SettingRule(is_name, "must be the name of a group, as in 'billing'")
_JOURNAL: Final = SettingRule(is_a(Path), "must be the path of a directory, as in Path('journals')")
_TO: Final = SettingRule(is_a(ResendTo), "must be ResendTo.ORIGIN or another ResendTo")
_WANTED: Final = SettingRule(
    lambda value: callable(value) and not is_coroutine_function(value),
    "must be a plain function of a DeadLetter",
).or_none()
_IN_DOUBT: Final = SettingRule(is_a(InDoubt), "must be InDoubt.LEAVE, InDoubt.SEND or InDoubt.SENT")
_RATE: Final = SettingRule(is_seconds, "must be a number of letters a second above 0").or_none()


def _check_chosen(group: str, journal: Path, to: ResendTo, wanted: LetterFilter | None) -> None:
    _GROUP.check("group", group)
    _JOURNAL.check("journal", journal)
    _TO.check("to", to)
    _WANTED.check("wanted", wanted)


async def would_resend(
    dead_letters: DeadLetters,
    group: str,
    journal: Path,
    to: ResendTo,
    wanted: LetterFilter | None = None,
) -> ResendReport:
    """Predict the result of ``resend``. Return its report, without sending or writing anything.

    Only the journal tells which letters were sent before. ``targets`` counts the letters by topic.
    """
    _check_chosen(group, journal, to, wanted)
    done = read_journal(read_unlocked(journal, group), journal_path(journal, group))[0].done
    report = ResendReport(group, dry_run=True)
    topics = target.TargetTopics(dead_letters.instance, group, to)
    async for letter in dead_letters.letters(group, wanted):
        topic = await topics.learn_topic(letter)
        if letter.resend_id in done:
            report.already += 1
        elif topic is None:
            report.fail(letter, _NO_ORIGIN)
        else:
            report.sent += 1
            report.targets[topic] = report.targets.get(topic, 0) + 1
    return report


async def resend(
    dead_letters: DeadLetters,
    group: str,
    journal: Path,
    to: ResendTo = ResendTo.ORIGIN,
    wanted: LetterFilter | None = None,
    *,
    in_doubt: InDoubt = InDoubt.LEAVE,
    rate: float | None = None,
    settle: float = SETTLE_S,
    on_progress: Callable[[ResendReport], None] = lambda report: None,
) -> ResendReport:
    """Send the selected dead letters of a group again, each once, and return a report.

    The report has the letters that failed, with the reasons.

    - ``journal``: directory of the journals. Keep it as long as the dead letters.
    - ``wanted``: function that selects dead letters. None selects all.
    - ``in_doubt``: treatment of letters that may be in a target queue that cannot be read.
    - ``rate``: maximum number of letters a second.
    - ``settle``: seconds after which a letter that is not in its queue is considered lost.

    Raises ResendError if another operator is resending this group's letters, or the journal cannot
    be read. Raises a RemotingError or MessageNotFoundError if the dead letters cannot be read,
    OSError if the journal cannot be written, and ConfigError for unusable arguments.
    """
    _check_chosen(group, journal, to, wanted)
    _IN_DOUBT.check("in_doubt", in_doubt)
    _RATE.check("rate", rate)
    SECONDS_OR_0.check("settle", settle)
    FUNCTION.check("on_progress", on_progress)
    environment = dead_letters.instance.environment
    name = environment.new_instance_name()
    now_ms = environment.clock.now_ms()
    writer = Journal(journal, group, run=name, now_ms=now_ms)
    try:
        run = ResendRun(dead_letters, group, writer, to, in_doubt, settle, on_progress)
        await run.settle_old_doubts()
        await run.send_all(wanted, rate)
        return run.report
    finally:
        writer.close()


_NO_ORIGIN: Final = (
    "the message does not say from which topic it came; it can be resent to the group's retry topic"
)


WaitingLetters = dict[str, tuple[DeadLetter, MessageQueue]]
"""Letters that are not sent yet, by id, each with its target queue."""


@dataclass(eq=False)
class ResendRun:
    """One run of ``resend`` with an open journal."""

    _dead_letters: DeadLetters
    _group: str
    _journal: Journal
    _to: ResendTo
    _in_doubt: InDoubt
    _settle_s: float
    _report_progress: Callable[[ResendReport], None]
    _aimed: dict[str, MessageQueue] = field(default_factory=dict)
    _sent: SentAlready = field(default_factory=SentAlready)
    _stuck: dict[str, target.UnreadableQueue] = field(default_factory=dict)
    _lost: set[str] = field(default_factory=set)
    _turn: int = 0

    def __post_init__(self) -> None:
        self._instance = self._dead_letters.instance
        self._topics = target.TargetTopics(self._instance, self._group, self._to)
        self._mark = target.mark_of(self._group)
        self._pace = ResendRate(None)
        self.report = ResendReport(self._group)

    # --- letters in doubt after a run that was killed

    async def settle_old_doubts(self) -> None:
        """Search the targets for letters in doubt: an earlier run sent them, and got no answer.

        A journal may be used with several clusters whose groups, topics and brokers have the same
        names. An id that is not among this group's dead letters may belong to another cluster. Only
        that cluster could tell, so the entry is left unchanged.
        """
        doubts = await self._of_this_cluster(self._journal.state.in_doubt)
        if not doubts:
            return
        now = self._now_ms()
        latest = max(aim.at_ms for aim in doubts.values())
        settled_in = latest / 1000 + self._settle_s - now / 1000
        await asyncio.sleep(min(max(settled_in, 0.0), self._settle_s))
        starts: dict[MessageQueue, int] = {}
        for aim in doubts.values():
            starts[aim.queue] = min(aim.start, starts.get(aim.queue, aim.start))
        for queue, start in starts.items():
            aimed = {id_ for id_, aim in doubts.items() if aim.queue == queue}
            try:
                await self._instance.routes.get(queue.topic)
                arrivals = await target.read_on(self._instance, self._mark, {queue: start})
            except (errors.RemotingError, errors.RouteNotFoundError) as error:
                text = "queue not searched for resent dead letters queue=%s cause=%s"
                log.warning(text, queue, error)
                self._stuck |= dict.fromkeys(aimed, target.UnreadableQueue(queue, str(error)))
                continue
            found = doubts.keys() & {arrival.id for arrival in arrivals}
            self._journal.record_sent(found)
            unsent = aimed - found
            self._journal.record_lost(unsent)
            self._lost |= unsent
            self.report.recovered += len(found)

    async def _of_this_cluster(self, doubts: Mapping[str, ResendAim]) -> dict[str, ResendAim]:
        here: dict[str, ResendAim] = {}
        if doubts:
            async for letter in self._dead_letters.letters(self._group):
                if letter.resend_id in doubts:
                    here[letter.resend_id] = doubts[letter.resend_id]
                    if len(here) == len(doubts):
                        break
        return here

    # --- sending

    async def send_all(self, wanted: LetterFilter | None, rate: float | None) -> None:
        self._report_progress(self.report)
        steps = list(FIRST_STEPS)
        self._pace = ResendRate(rate)
        size_max = STEP
        if rate is not None:
            size_max = max(1, min(STEP, int(rate * AIMED_AHEAD_S)))
        batch: list[DeadLetter] = []
        async for letter in self._dead_letters.letters(self._group, wanted):
            hidden = self._stuck.get(letter.resend_id)
            if letter.resend_id in self._journal.state.done:
                self.report.already += 1
            elif hidden is not None and not self._may_send(letter, hidden):
                pass
            elif await self._topics.learn_topic(letter) is None:
                self.report.fail(letter, _NO_ORIGIN)
            else:
                batch.append(letter)
            if len(batch) >= min([*steps[:1], size_max]):
                if not await self._send_batch(batch):
                    return
                batch = []
                steps = steps[1:]
        if not batch or await self._send_batch(batch):
            await self._look_for_others()
        self._report_progress(self.report)

    def _may_send(self, letter: DeadLetter, hidden: target.UnreadableQueue) -> bool:
        """Return True if a letter in doubt may be sent again. Its target queue is unreadable.

        The user's ``in_doubt`` decides.
        """
        match self._in_doubt:
            case InDoubt.LEAVE:
                self.report.in_doubt += 1
                self.report.out_of_sight[str(hidden.queue)] = hidden.why
                return False
            case InDoubt.SENT:
                self._journal.record_sent([letter.resend_id])
                self.report.already += 1
                return False
            case InDoubt.SEND:
                self._journal.record_lost([letter.resend_id])
                self._lost.add(letter.resend_id)
                return True

    async def _send_batch(self, batch: list[DeadLetter]) -> bool:
        """Send a batch of letters, and return True if the run can continue."""
        # Each step makes the next one safe. First the targets are read for messages that this run
        # has not sent: another operator would show here, before the first letter of the batch. Then
        # the brokers' indexes tell which letters somebody sent before with another journal. Each
        # attempt writes its target queues to the journal before it sends, so that after a kill the
        # next run knows the queues in which to search. A letter without an answer is searched for
        # before it is sent again to the same queue. A refused letter is certainly not stored, and
        # gets another queue.
        letters = await self._with_topics(batch)
        try:
            # New messages in the targets show if another operator is resending.
            await self._look_for_others()
            letters = await self._not_elsewhere(letters)
            waiting = {letter.resend_id: (letter, self._choose_queue(letter)) for letter in letters}
            outcomes: dict[str, ResendOutcome] = {}
            for attempt in range(ROUNDS):
                if not waiting:
                    break
                if attempt:
                    await asyncio.sleep(self._settle_s)
                outcomes = await self._send_round(waiting, last=attempt == ROUNDS - 1)
        except (errors.RemotingError, errors.RouteNotFoundError) as error:
            # The journal has the letters that may be sent; the next run searches for them first.
            in_doubt = self._journal.state.in_doubt
            self.report.in_doubt += sum(letter.resend_id in in_doubt for letter in letters)
            self.report.stopped = str(error)
            return False
        for id_, (letter, _) in waiting.items():
            self.report.fail(letter, outcomes[id_].why)
        self._report_progress(self.report)
        return True

    async def _send_round(self, waiting: WaitingLetters, *, last: bool) -> dict[str, ResendOutcome]:
        """Send the waiting letters once, and return the outcomes by id.

        Letters that have arrived or cannot be sent are removed from ``waiting``. The other refused
        letters get another queue.
        """
        aims = {id_: queue for id_, (_, queue) in waiting.items()}
        self._aimed.update(aims)
        await asyncio.to_thread(self._journal.record_aims, aims, self._now_ms())
        answers = await asyncio.gather(*(self._send(*one) for one in waiting.values()))
        outcomes = dict(zip(list(waiting), answers, strict=True))
        self._record_arrivals([id_ for id_, outcome in outcomes.items() if outcome.stored], waiting)
        if any(outcome.in_doubt for outcome in outcomes.values()):
            await asyncio.sleep(self._settle_s)
            await self._look_for_others()
            self._record_arrivals([id_ for id_ in list(waiting) if self._sent.ids[id_]], waiting)
        for id_ in list(waiting):
            letter, _ = waiting[id_]
            outcome = outcomes[id_]
            if outcome.final:
                self.report.fail(letter, outcome.why)
                del waiting[id_]
            elif not outcome.in_doubt and not last:  # refused: another queue may take it
                waiting[id_] = letter, self._choose_queue(letter)
        return outcomes

    async def _send(self, letter: DeadLetter, queue: MessageQueue) -> ResendOutcome:
        await self._pace.wait_turn()
        return await send_once(self._instance, letter, queue)

    def _record_arrivals(self, ids: Sequence[str], waiting: WaitingLetters) -> None:
        self._journal.record_sent(ids)
        for id_ in ids:
            letter, queue = waiting.pop(id_)
            assert letter.resend_id == id_
            self.report.sent += 1
            self.report.targets[queue.topic] = self.report.targets.get(queue.topic, 0) + 1

    def _choose_queue(self, letter: DeadLetter) -> MessageQueue:
        topic = self._topics.topic_of(letter)
        assert topic is not None
        queues = [queue for queue in self._usable_queues(topic) if queue in self._sent.read_to]
        if not queues:
            raise errors.RouteNotFoundError(f"no broker takes messages of {topic} now")
        self._turn += 1
        return queues[self._turn % len(queues)]

    def _usable_queues(self, topic: str) -> list[MessageQueue]:
        """Return the usable queues of a topic: writable, readable, and with a master."""
        route = self._instance.routes.known[topic]
        readable = set(route.subscribe_queues)
        return [
            queue
            for queue in route.publish_queues
            if queue in readable and route.master(queue.broker_name) is not None
        ]

    async def _with_topics(self, batch: Iterable[DeadLetter]) -> list[DeadLetter]:
        """Return the letters whose target topic accepts messages.

        From now on, the queues of these topics are watched for messages of other operators.
        """
        good: list[DeadLetter] = []
        faults: dict[str, str | None] = {}
        for letter in batch:
            topic = self._topics.topic_of(letter)
            assert topic is not None
            if topic not in faults:
                faults[topic] = await self.begin_topic(topic)
            fault = faults[topic]
            if fault is None:
                good.append(letter)
            else:
                self.report.fail(letter, fault)
        return good

    async def begin_topic(self, topic: str) -> str | None:
        """Prepare a target topic. Return the reason if it can take no letters, else None."""
        try:
            await self._instance.routes.get(topic)
            queues = self._usable_queues(topic)
            if not queues:
                wants = "is both writable and readable"
                return f"topic {topic} has no queue that {wants}"
            if all(queue.topic != topic for queue in self._sent.read_to):
                starts = await target.queue_ends(self._instance, queues)
                self._journal.start(starts)
                self._sent.read_to.update(starts)
        except (errors.RouteNotFoundError, errors.RemotingError) as error:
            return f"{error}{target.missing_topic_hint(topic, self._group)}"
        return None

    # --- other operators

    async def _look_for_others(self) -> None:
        """Read new messages in the target queues, and count the resent letters among them.

        Raises ResendError if a letter was not sent by this run, or is there twice.
        """
        state = self._journal.state
        for arrival in await target.read_on(self._instance, self._mark, self._sent.read_to):
            self._sent.ids[arrival.id] += 1
            known = arrival.id in self._aimed or arrival.id in state.done
            if arrival.id in self._lost and not known:
                # an earlier run sent it, and it arrived late
                self._journal.record_sent([arrival.id])
                self.report.recovered += 1
                known = True
            if not known or self._sent.ids[arrival.id] > 1:
                raise errors.ResendError(
                    "another operator is resending the dead letters of group "
                    f"{self._group!r}: {arrival.id} is at offset {arrival.offset} of "
                    f"{arrival.queue}, and this run did not send it. Sent by this run so "
                    f"far: {self.report.sent}. Only one of you may continue"
                )

    async def _not_elsewhere(self, letters: Sequence[DeadLetter]) -> list[DeadLetter]:
        """Search the targets for letters, and return the letters that are not there yet.

        Someone with another journal may have sent the others.
        """
        gate = asyncio.Semaphore(16)

        async def find(letter: DeadLetter) -> target.ResentLetter | target.UnreadableQueue | None:
            topic = self._topics.topic_of(letter)
            assert topic is not None
            async with gate:
                return await target.find_by_id(self._dead_letters, topic, letter.resend_id)

        unsent: list[DeadLetter] = []
        finds = await asyncio.gather(*(find(letter) for letter in letters))
        for letter, found in zip(letters, finds, strict=True):
            if letter.resend_id in self._journal.state.done:
                self.report.already += 1
            elif isinstance(found, target.ResentLetter):
                self._journal.record_sent([letter.resend_id])
                self.report.elsewhere += 1
            elif found is None or self._may_send(letter, found):
                unsent.append(letter)
        return unsent

    def _now_ms(self) -> int:
        return self._instance.environment.clock.now_ms()


FAILURES_SHOWN: Final = 100


@dataclass(slots=True)
class ResendReport:
    """Result of a run: numbers of dead letters by outcome.

    - ``sent``: sent in this run. In a dry run: letters that would be sent.
    - ``already``: sent before, by the journal.
    - ``recovered``: sent by a run that was killed, and found in the target at this run's
      start. Selected ones also count as ``already``.
    - ``elsewhere``: sent by someone with another journal.
    - ``failed``: reason by position, for the first 100; ``failures`` counts all.
    - ``in_doubt``: possibly in the target. The next run finds out if it can read the queues
      in ``out_of_sight`` (reason by queue).
    - ``stopped``: reason why the run ended early.
    """

    group: str
    dry_run: bool = False
    sent: int = 0
    already: int = 0
    recovered: int = 0
    elsewhere: int = 0
    failures: int = 0
    in_doubt: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    targets: dict[str, int] = field(default_factory=dict)
    out_of_sight: dict[str, str] = field(default_factory=dict)
    stopped: str | None = None

    @property
    def complete(self) -> bool:
        """True if every selected letter is in its target."""
        return not (self.failures or self.in_doubt or self.stopped)

    @property
    def handled(self) -> int:
        return self.sent + self.already + self.elsewhere + self.failures + self.in_doubt

    def fail(self, letter: DeadLetter, why: str) -> None:
        self.failures += 1
        if len(self.failed) < FAILURES_SHOWN:
            self.failed[letter.position] = why


class ResendRate:
    """Limiter that lets letters be sent evenly, ``rate`` a second.

    Without a rate, no letter waits. The limiter makes up for a pause, but never lets more than
    ``rate`` letters be sent within one second.
    """

    def __init__(self, rate: float | None) -> None:
        self._rate = rate
        self._latest: deque[float] = deque(maxlen=max(1, int(rate or 1)))
        self._due = 0.0
        self._one_by_one = asyncio.Lock()

    async def wait_turn(self) -> None:
        if self._rate is None:
            return
        loop = asyncio.get_running_loop()
        async with self._one_by_one:
            latest = self._latest
            span = (self._latest.maxlen or 1) / self._rate
            now = loop.time()
            if latest:
                self._due = max(self._due + 1 / self._rate, now - span)
            else:
                self._due = now
            at = self._due
            if len(latest) == latest.maxlen:
                at = max(at, latest[0] + span)
            await asyncio.sleep(max(0.0, at - loop.time()))
            latest.append(loop.time())


TIMEOUT_S: Final = 5.0
_STORED: Final = frozenset(
    {
        ResponseCode.FLUSH_DISK_TIMEOUT,
        ResponseCode.SLAVE_NOT_AVAILABLE,
        ResponseCode.FLUSH_SLAVE_TIMEOUT,
    }
)
"""Response codes for a message that is stored, but not flushed or replicated yet."""
_BUSY: Final = frozenset({ResponseCode.SYSTEM_BUSY, ResponseCode.SERVICE_NOT_AVAILABLE})
"""Response codes for a message that is not stored, but may be stored later."""
_REFUSED: Final = frozenset(
    {
        ResponseCode.MESSAGE_ILLEGAL,
        ResponseCode.NO_PERMISSION,
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
    }
)
"""Response codes for a message that is not stored, and would be refused again."""


class ResendOutcome(NamedTuple):
    """Outcome of one attempt to send a letter.

    If neither ``stored`` nor ``in_doubt`` is True, the letter is not stored.

    - ``stored``: True if the broker has stored the letter.
    - ``in_doubt``: True if the broker may have stored the letter.
    - ``final``: True if another attempt is useless.
    - ``why``: reason of a failure.
    """

    stored: bool = False
    in_doubt: bool = False
    final: bool = False
    why: str = ""


async def send_once(
    instance: ClientInstance, letter: DeadLetter, queue: MessageQueue
) -> ResendOutcome:
    address = instance.routes.known[queue.topic].master(queue.broker_name)
    if address is None:
        return ResendOutcome(why=f"broker {queue.broker_name} has no master now")
    try:
        request = letter.request(queue)
        body = letter.message.stored_body
        await instance.remoting.call(address, request, body, timeout=TIMEOUT_S)
    except (errors.ConnectError, errors.MessageError) as error:
        return ResendOutcome(final=isinstance(error, errors.MessageError), why=str(error))
    except errors.ResponseError as error:
        if error.code in _STORED:
            return ResendOutcome(stored=True)
        refused = error.code in _REFUSED
        busy = error.code in _BUSY
        return ResendOutcome(in_doubt=not (busy or refused), final=refused, why=str(error))
    except errors.RemotingError as error:
        return ResendOutcome(in_doubt=True, why=str(error))
    return ResendOutcome(stored=True)
