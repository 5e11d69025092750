"""Producer of messages that are delivered only if a local transaction succeeds.

The producer sends a half message, which no consumer sees. Then it runs the user's executor, which
returns the state of the transaction. The producer reports the state to the broker, which delivers
or drops the message. A broker that gets no report asks a producer of the group, whose checker looks
up the state. Source: apache/rocketmq ``TransactionMQProducer``,
``DefaultMQProducerImpl.sendMessageInTransaction``.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Final, NamedTuple

from turbopump.client.consumer.handling import cancelled
from turbopump.client.hooks import EndTransactionContext
from turbopump.client.namespace import unwrap, wrap
from turbopump.client.producer import Producer
from turbopump.client.sending.outgoing import DELAYING, refuse_changed_message
from turbopump.client.sending.send_result import ProducerClosedError, SendResult, SendStatus
from turbopump.client.sending.sender import PendingSends, Sender
from turbopump.client.sending.settings import (
    Executor,
    ProducerSettings,
    TransactionProducerSettings,
)
from turbopump.client.setting_rules import FUNCTION, check_timeout
from turbopump.client.settings import keywords_of
from turbopump.client.user_function import NotCalledError, UserFunction
from turbopump.errors import ConfigError, ConnectError, MessageError, TurbopumpError
from turbopump.message.ids import decode_offset_msg_id
from turbopump.message.message import Message, ReceivedMessage
from turbopump.message.properties import (
    PRODUCER_GROUP,
    TRANSACTION_ID,
    TRANSACTION_PREPARED,
    UNIQ_KEY,
)
from turbopump.message.rules import DEFAULT_TOPIC
from turbopump.protocol.command import encode_command, request_command
from turbopump.protocol.requests.send import (
    CheckTransactionState,
    EndTransaction,
    TransactionOutcome,
)
from turbopump.remoting.wire import Wire
from turbopump.repeated_line import RepeatedLine


class TransactionState(Enum):
    """State of a transaction, as an executor or checker returns it.

    UNKNOWN means that the transaction is not decided yet; the broker asks again later.
    """

    COMMIT = "COMMIT_MESSAGE"
    ROLLBACK = "ROLLBACK_MESSAGE"
    UNKNOWN = "UNKNOW"

    @property
    def outcome(self) -> TransactionOutcome:
        return TransactionOutcome[self.name]


@dataclass(frozen=True, slots=True)
class TransactionResult:
    """Outcome of a call of ``send_in_transaction``.

    - ``sent``: result of the half message.
    - ``state``: state that the executor returned. ROLLBACK without a call of the executor if
      the status of the half message is not OK. UNKNOWN if the executor failed.
    - ``error``: the executor's exception, or a NotStartedError if the producer was closed
      before the executor was called.
    - ``told``: True if the state was sent to the broker. Otherwise the broker will ask.
    """

    sent: SendResult
    state: TransactionState
    error: Exception | None = None
    told: bool = True

    @property
    def transaction_id(self) -> str:
        """Id of the transaction. Executor, checker and consumers read it from the property
        ``__transactionId__``."""
        return self.sent.transaction_id or self.sent.msg_id


log = logging.getLogger(__name__)
_checker_failed = RepeatedLine(
    log, logging.WARNING, "checker failed, the broker will ask again msg_id=%s topic=%s cause=%s"
)
_not_told = RepeatedLine(
    log,
    logging.WARNING,
    "transaction state not reported, the broker will ask state=%s msg_id=%s cause=%s",
)
_executor_failed = RepeatedLine(
    log,
    logging.WARNING,
    "executor failed, the broker will ask the checker msg_id=%s topic=%s cause=%s",
)

WAITING_MAX: Final = 2000
"""Maximum number of brokers' questions that wait for the checker (``checkRequestHoldMax``). Further
questions are dropped."""
ANSWER_S: Final = 60.0
"""Timeout of one call of the checker, in seconds. The broker asks again later."""

_worker: Final[ContextVar[asyncio.Task[Any] | None]] = ContextVar("turbopump worker", default=None)
"""Task that calls the checker. The thread of a checker that is a plain function inherits the
value."""


class StateQuestion(NamedTuple):
    """Question of a broker about the state of a transaction.

    - ``message``: the half message.
    - ``peer``: connection to the broker.
    """

    request: CheckTransactionState
    message: ReceivedMessage
    peer: Wire


@dataclass(eq=False)
class TransactionAnswers:
    """Worker that answers brokers' questions about the states of transactions.

    The user's checker is called for at most ``concurrency`` questions at a time. A question that
    cannot be answered is dropped and counted; the broker asks again. ``close`` stops new checks,
    but not running ones. Source: apache/rocketmq ``DefaultMQProducerImpl.checkTransactionState``.

    - ``answer``: function of (request, remark, question, state) that sends an answer.
    - ``dropped``: number of dropped questions.
    """

    checker: UserFunction
    answer: Callable[[EndTransaction, str | None, StateQuestion, TransactionState], None]
    group: str
    namespace: str | None
    concurrency: int
    dropped: int = 0
    _waiting: deque[StateQuestion] = field(default_factory=deque)
    _workers: int = 0
    _working: dict[asyncio.Task[Any], PendingSends] = field(default_factory=dict)
    """Tasks that call the checker. The value is the counter of unfinished work that includes the
    task."""
    _closed: bool = False

    def add_question(self, asked: StateQuestion, sender: Sender) -> None:
        if self._closed:
            return
        if len(self._waiting) >= WAITING_MAX:
            if not self.dropped:
                log.warning(
                    "questions about transactions are dropped, the checker is too slow "
                    "waiting=%d group=%s",
                    WAITING_MAX,
                    self.group,
                )
            self.dropped += 1
            return
        self._waiting.append(asked)
        if self._workers < self.concurrency:
            self._workers += 1
            name = f"checks of transactions of {self.group}"
            sender.instance.spawn(self._work(sender.under_way), name=name)

    def close(self) -> None:
        """Drop all waiting and later questions. The broker asks another producer of the group.

        The close of the producer does not wait for a check that has called it.
        """
        self._closed = True
        self._waiting.clear()
        this = asyncio.current_task()
        if this not in self._working and self.checker.plain:
            this = _worker.get()
        if this in self._working:
            self._working.pop(this).ended()

    async def cancel_checks(self) -> None:
        """Cancel the checks that are still running after ``close``."""
        if self._working:
            await cancelled(list(self._working), 0)

    async def _work(self, under_way: PendingSends) -> None:
        this = asyncio.current_task()
        assert this is not None
        _worker.set(this)
        under_way.hold()
        self._working[this] = under_way
        try:
            while self._waiting:
                await self._answer(self._waiting.popleft())
        finally:
            self._workers -= 1
            if self._working.pop(this, None) is not None:
                under_way.ended()

    async def _answer(self, asked: StateQuestion) -> None:
        request, message, _ = asked
        message.topic = unwrap(self.namespace, message.topic)
        message.broker_name = request.bname or ""
        # RocketMQ 4 does not store this property
        message.properties.setdefault(TRANSACTION_ID, message.msg_id)
        remark = None
        try:
            async with asyncio.timeout(ANSWER_S):
                state = state_of(await self.checker.call(message), "checker")
        except Exception as error:
            _checker_failed(
                message.msg_id, message.topic, repr(error), kind=type(error), exc_info=True
            )
            state = TransactionState.UNKNOWN
            remark = f"checkLocalTransactionState Exception: {error!r}"
        answer = EndTransaction(
            topic=request.topic,
            producer_group=self.group,
            tran_state_table_offset=request.tran_state_table_offset,
            commit_log_offset=request.commit_log_offset,
            commit_or_rollback=state.outcome,
            from_transaction_check=True,
            msg_id=message.msg_id,
            transaction_id=request.transaction_id,
            bname=request.bname,
        )
        self.answer(answer, remark, asked, state)


def state_of(returned: object, who: str) -> TransactionState:
    """Convert the value returned by a user's function to the state of a transaction.

    None means UNKNOWN. Raises TypeError for any other value that is no state.
    """
    if returned is None:
        return TransactionState.UNKNOWN
    if isinstance(returned, TransactionState):
        return returned
    raise TypeError(
        f"the {who} returned {returned!r}; expected TransactionState.COMMIT, ROLLBACK or "
        "UNKNOWN (or None)"
    )


INTRODUCE_AGAIN_S: Final = 30.0
RENEW_S: Final = 3.0
"""Timeout in seconds for looking up a broker's new address. If the look-up fails, the broker asks
for the state later."""


class TransactionProducer(Producer):
    """Producer that can also send messages in transactions.

    Brokers may ask any producer of ``group`` about the transaction of another, so use a separate
    group for each checker. The keywords are the fields of ``TransactionProducerSettings``;
    docs/reference/client-settings.md explains them. Raises ConfigError for unusable settings, and
    for the default producer group.
    """

    @keywords_of(TransactionProducerSettings)
    def __init__(self, settings: TransactionProducerSettings) -> None:
        super().__init__(**settings.shared_with(ProducerSettings))
        threads = settings.threads
        self._threads = threads
        self._executor = None
        if settings.executor is not None:
            self._executor = UserFunction(settings.executor, threads=threads, name="executor")
        self._checker = UserFunction(settings.checker, threads=threads, name="checker")
        self._answers = TransactionAnswers(
            self._checker, self._answer, self._member.group, self._namespace, threads
        )
        self._member.exclusive = True
        self._member.on_transaction_check = self._broker_asked

    async def __aenter__(self) -> TransactionProducer:
        await self.start()
        return self

    async def start(self) -> None:
        """Start like ``Producer.start``, and register with brokers. They may later ask for the
        states of transactions."""
        begins = self._sender is None
        await super().start()
        if begins:
            sender = self._started()
            name = "introduction of a transaction producer"
            sender.tasks.append(sender.instance.spawn(self._introduce(sender), name=name))

    async def _learn_routes(self) -> None:
        """Do nothing at the start, because ``_introduce`` fetches the routes later.

        Until then, brokers ask other producers of the group.
        """

    async def close(self) -> None:
        """Close as ``Producer.close`` does, and also wait for running transactions and checks.

        If a transaction lasts longer, the broker asks another producer of the group. No check
        starts after the call, and no executor starts after ``send_timeout``. A transaction whose
        executor was not called returns the state UNKNOWN and a NotStartedError.
        """
        if self._sender is not None:
            self._answers.close()
        await super().close()
        await self._answers.cancel_checks()

    async def _wait_idle(self, sender: Sender) -> None:
        try:
            await super()._wait_idle(sender)
        finally:
            self._checker.close()
            if self._executor is not None:
                self._executor.close()

    async def send_in_transaction(
        self,
        message: Message,
        arg: object = None,
        *,
        executor: Executor | None = None,
        timeout: float | None = None,
    ) -> TransactionResult:
        """Send ``message`` as a half message, call the executor, and report the state to the
        broker.

        The executor is called with ``message`` and ``arg``. The message property
        ``__transactionId__`` contains the transaction's id. An exception of the executor is logged
        and returned in the result; the broker then asks the checker. The result contains a
        NotStartedError if the producer was closed before the executor was called. ``timeout`` is
        the time in seconds for the half message.

        Raises the errors of ``Producer.send``, and MessageError for a delayed message. The executor
        was not called then.
        """
        FUNCTION.or_none().check("executor", executor)
        check_timeout(timeout)
        run = self._executor
        if executor is not None:
            run = UserFunction(executor, threads=1, name="executor")
        if run is None:
            raise ConfigError(
                "a transaction needs an executor; give one to TransactionProducer "
                "or to send_in_transaction"
            )
        sender = self._ready()
        try:
            delaying = next((name for name in DELAYING if name in message.properties), None)
        except (AttributeError, TypeError):
            refuse_changed_message(message)
            raise
        if delaying is not None:
            raise MessageError(
                f"the message of a transaction cannot be delayed (property {delaying}); send it "
                "without"
            )
        try:
            with sender.under_way:
                return await self._execute(sender, message, arg, run, timeout)
        finally:
            if run is not self._executor:
                run.close()

    async def _execute(
        self,
        sender: Sender,
        message: Message,
        arg: object,
        run: UserFunction,
        timeout: float | None,
    ) -> TransactionResult:
        marks = {TRANSACTION_PREPARED: "true", PRODUCER_GROUP: self._member.group}
        properties = {**message.properties, **marks}
        half = Message.as_it_is(message.topic, message.body, properties, message.flag)
        outgoing = self._pack.pack(half)
        sent = await self._limiter.deliver(sender, outgoing, None, timeout)
        state = TransactionState.ROLLBACK
        failed: Exception | None = None
        if sent.status is SendStatus.OK:
            half.properties[UNIQ_KEY] = outgoing.msg_id
            half.properties[TRANSACTION_ID] = sent.transaction_id or outgoing.msg_id
            try:
                if sender.under_way.closed:
                    raise NotCalledError(
                        "the function was not called: the close had ended before the half message "
                        "was stored"
                    )
                state = state_of(await run.call(half, arg), "executor")
            except NotCalledError as error:
                state = TransactionState.UNKNOWN
                failed = error
            except Exception as error:
                state = TransactionState.UNKNOWN
                failed = error
                _executor_failed(
                    sent.msg_id, message.topic, repr(error), kind=type(error), exc_info=True
                )
        result = TransactionResult(sent, state, failed, told=False)
        return replace(result, told=await self._end_transaction(sender, half, result))

    # --- reports to the broker

    async def _end_transaction(
        self, sender: Sender, half: Message, result: TransactionResult
    ) -> bool:
        """Report the state of a transaction to the broker of the half message.

        Returns True if the report was written to the connection.
        """
        topic = wrap(self._namespace, half.topic)
        sent = result.sent
        request = EndTransaction(
            topic=topic,
            producer_group=self._member.group,
            tran_state_table_offset=sent.queue_offset,
            commit_log_offset=decode_offset_msg_id(sent.offset_msg_id)[2],
            commit_or_rollback=result.state.outcome,
            from_transaction_check=False,
            msg_id=sent.msg_id,
            transaction_id=sent.transaction_id,
            bname=sent.queue.broker_name,
        )
        remark = None
        if result.error is not None:
            remark = f"executeLocalTransactionBranch exception: {result.error!r}"
        closed = "the producer was closed meanwhile"
        try:
            sender.under_way.refuse_if_closed(closed)
            address, connection = await self._connect(sender, topic, sent.queue.broker_name)
            sender.under_way.refuse_if_closed(closed)
        except (ConnectError, ProducerClosedError) as cause:
            _not_told(result.state.name, sent.msg_id, cause, kind=type(cause))
            return False
        self._write_report(sender, connection, request, remark, address, half, result.state)
        return True

    @staticmethod
    async def _connect(sender: Sender, topic: str, broker_name: str) -> tuple[str, Wire]:
        """Return the address of a broker's master and a connection to it.

        If the known address cannot be reached, a newer route is fetched. Raises ConnectError if the
        master cannot be reached at any address.
        """
        routes = sender.instance.routes
        connect = sender.instance.remoting.connect
        route = routes.known.get(topic)
        address = None if route is None else route.master(broker_name)
        refused = ConnectError(f"broker {broker_name} has no master at the moment")
        if address is not None:
            try:
                return address, await connect(address)
            except ConnectError as error:
                refused = error
        if route is not None:
            newer = (await routes.renewed(route, RENEW_S)).master(broker_name)
            if newer is not None and newer != address:
                return newer, await connect(newer)
        raise refused

    def _broker_asked(
        self, request: CheckTransactionState, message: ReceivedMessage, peer: Wire
    ) -> None:
        if self._sender is not None:
            self._answers.add_question(StateQuestion(request, message, peer), self._sender)

    def _answer(
        self,
        answer: EndTransaction,
        remark: str | None,
        asked: StateQuestion,
        state: TransactionState,
    ) -> None:
        sender = self._started()
        if sender.under_way.closed:
            return
        peer = asked.peer
        self._write_report(sender, peer, answer, remark, peer.peer, asked.message, state)

    def _write_report(
        self,
        sender: Sender,
        connection: Wire,
        request: EndTransaction,
        remark: str | None,
        address: str,
        message: Message | ReceivedMessage,
        state: TransactionState,
    ) -> None:
        """Write the report of a transaction's state to the connection, and call the hooks."""
        command = request_command(request, opaque=connection.calls.next_opaque, oneway=True)
        command.remark = remark
        if sender.instance.signer is not None:
            command.ext = sender.instance.signer(command.ext, b"")
        connection.send_frame(encode_command(command))
        context = EndTransactionContext(
            self._member.group,
            wrap(self._namespace, message.topic),
            message.properties,
            address,
            request.msg_id or "",
            request.transaction_id,
            state.value,
            from_check=request.from_transaction_check is True,
        )
        sender.hooks.end_transaction(context)

    async def _introduce(self, sender: Sender) -> None:
        """Fetch the routes of the producer's topics. The brokers in these routes then receive
        heartbeats.

        Without ``topics``, the route of TBW102 is fetched. RocketMQ: ``topics`` in 5.x, TBW102 in
        4.x.
        """
        missing = [wrap(self._namespace, topic) for topic in self._settings.topics] or [
            DEFAULT_TOPIC
        ]
        while missing:
            for topic in list(missing):
                try:
                    await sender.instance.routes.get(topic)
                except TurbopumpError as error:
                    log.debug("no heartbeat sent yet topic=%s cause=%s", topic, error)
                else:
                    missing.remove(topic)
            if missing:
                await asyncio.sleep(INTRODUCE_AGAIN_S)
