"""Every error that Turbopump raises on purpose.

::

    TurbopumpError
    ├── ConfigError                 a key, a value or an option that cannot be used
    ├── MessageError                a message that may not be sent (topic name, size, properties)
    ├── ProtocolError               bytes that are not what the protocol or a file format says
    │   ├── FrameError              the frame itself: length, header length, serialize type
    │   ├── HeaderError             a header that cannot be read
    │   ├── BodyError               a body that cannot be read (FastjsonError is one)
    │   └── StoredMessageError      a stored entry that cannot be read
    ├── RemotingError               a call that did not come back well
    │   ├── ConnectError            no connection to the peer
    │   ├── ConnectionLostError     the connection ended before the answer came
    │   ├── CallTimeoutError        no answer in time
    │   └── ResponseError           the peer answered with an error code and a remark
    ├── StoreError                  the store directory cannot be used as asked
    │   ├── StoreLockedError        another process has the directory open
    │   ├── ReadsRefusedError       too many reads wait for the disk: try again
    │   ├── RoomInMakingError       the next file of the log is being made: try again
    │   ├── StoreClosedError        the store was closed, or refuses writes
    │   ├── CopyError               what a master sends is not its slave's next entry
    │   └── StoreDamagedError       files that contradict each other or their format
    ├── LakeError                   a lake that cannot be read or written as asked
    │   ├── LakeInUseError          another process writes to it
    │   └── OffsetGapError          a batch does not begin where the table ends
    ├── PipelineError               what Spark could not do
    ├── MissingExtraError           a package that is not installed; also a ModuleNotFoundError
    └── ClientError                 what a producer or consumer could not do
        ├── RouteNotFoundError      no broker is known for the topic
        ├── SendError               no broker took the message
        ├── RequestError            a request that was sent got no reply
        │   └── RequestTimeoutError none came in time
        ├── ReplyError              a reply did not reach who asked
        ├── MessageNotFoundError    no broker has the message that was asked for
        ├── ResendError             dead letters cannot be resent now
        ├── DataLossError           Spark: messages of an asked range are gone or damaged
        ├── WriteError              Spark: rows that no broker took
        └── NotStartedError         used before start, after close, or in a forked child

Local mistakes (ConfigError, MessageError) are raised before anything is sent; ResponseError is the
peer's word. Every one can be pickled and copied with its attributes, so it reaches who waits for
the worker of a process pool.
"""

from __future__ import annotations

from enum import IntEnum
from typing import ClassVar, Final

SEE_DOCTOR: Final = "`turbopump doctor` looks at the servers, and says what is wrong"
"""A note to an error whose cause may lie elsewhere; the command line shows it too."""
NO_PERMISSION: Final = 16
"""The response code of a request that is denied."""


class ClientErrorCode(IntEnum):
    """Code of an error that no server has sent. Source: apache/rocketmq ``ClientErrorCode``."""

    CONNECT_BROKER = 10001
    ACCESS_BROKER_TIMEOUT = 10002
    BROKER_NOT_EXIST = 10003
    NO_NAME_SERVER = 10004
    NOT_FOUND_TOPIC = 10005
    REQUEST_TIMEOUT = 10006


class TurbopumpError(Exception):
    """Base of all errors raised by this package."""

    def __reduce__(self) -> tuple[object, ...]:
        return (
            _made_again,
            (type(self), self.args),
            self.__dict__,
        )  # Exception's own would call the class with nothing but its text


def _made_again(kind: type[TurbopumpError], args: tuple[object, ...]) -> TurbopumpError:
    return kind.__new__(kind, *args)


class ConfigError(TurbopumpError):
    """A configuration key, value or option that cannot be used; the text says which and what is
    expected."""


class MessageError(TurbopumpError):
    """A message that may not be sent: illegal topic, empty or oversized body, oversized
    properties."""


class ProtocolError(TurbopumpError):
    """Bytes that break the protocol or a file format."""


class FrameError(ProtocolError):
    """A frame with impossible lengths or an unknown serialize type; the connection must be
    closed."""


class HeaderError(ProtocolError):
    """A command header that cannot be read."""


class BodyError(ProtocolError):
    """A command body that cannot be read."""


class StoredMessageError(ProtocolError):
    """A stored message whose bytes contradict its own lengths or magic."""


class RemotingError(TurbopumpError):
    """A call to a peer that did not come back well."""


class ConnectError(RemotingError):
    """No connection to the peer could be made. ``code``: CONNECT_BROKER, or BROKER_NOT_EXIST if its
    address is not known."""

    def __init__(self, text: str, *, code: int = ClientErrorCode.CONNECT_BROKER) -> None:
        super().__init__(text)
        self.code = code
        self.add_note(SEE_DOCTOR)


class ConnectionLostError(RemotingError):
    """The connection ended before the answer came: the peer may or may not have acted."""


class CallTimeoutError(RemotingError):
    """No answer came in time: the peer may or may not have acted."""

    code: ClassVar[int] = ClientErrorCode.ACCESS_BROKER_TIMEOUT


class ResponseError(RemotingError):
    """The peer answered with an error.

    ``code`` is the response code (see ``turbopump.protocol.codes.ResponseCode``), ``remark`` the
    peer's text.
    """

    def __init__(
        self, code: int, remark: str | None, *, request: str = "", address: str = ""
    ) -> None:
        self.code = code
        self.remark = remark or ""
        where = f" from {address}" if address else ""
        what = f" to {request}" if request else ""
        super().__init__(f"code {int(code)}{what}{where}: {self.remark or 'no remark'}")
        if code == NO_PERMISSION:
            self.add_note(SEE_DOCTOR)


class StoreError(TurbopumpError):
    """The store directory cannot be used as asked."""


class StoreLockedError(StoreError):
    """Another process holds the store directory."""


class ReadsRefusedError(StoreError):
    """Too many reads wait for the disk: nothing was read, and the same can be asked again in a
    moment. A server answers it with code 2, which clients try again."""

    def __init__(self) -> None:
        super().__init__("too many reads wait for the broker's disk; ask again in a moment")


class RoomInMakingError(StoreError):
    """The next file of the log is being made: nothing was stored, and the same can be tried again
    when it is there."""


class StoreClosedError(StoreError):
    """The store is closed or refuses writes."""


class CopyError(StoreError):
    """Bytes from a master that cannot be the next entry of its slave's log; the text has the
    reason."""


class StoreDamagedError(StoreError):
    """Store files that contradict each other or their format."""


class ClientError(TurbopumpError):
    """Failure of a producer or consumer."""


class RouteNotFoundError(ClientError):
    """No broker is known for a topic. ``code``: NOT_FOUND_TOPIC, or NO_NAME_SERVER if none
    answered."""

    def __init__(self, text: str, *, code: int = ClientErrorCode.NOT_FOUND_TOPIC) -> None:
        super().__init__(text)
        self.code = code
        if "turbopump doctor" not in text:
            self.add_note(SEE_DOCTOR)


class SendError(ClientError):
    """No broker took the message; the text lists what was tried.

    ``brokers`` are the names tried, in order; ``code`` is that of the last answer; if there was
    none, a ``ClientErrorCode``, or None where none says what happened.
    """

    def __init__(
        self,
        text: str,
        *,
        topic: str = "",
        brokers: tuple[str, ...] = (),
        spent_ms: float = 0.0,
        code: int | None = None,
    ) -> None:
        super().__init__(text)
        self.topic = topic
        self.brokers = brokers
        self.spent_ms = spent_ms
        self.code = code


class RequestError(ClientError):
    """A request that will get no reply: the producer was closed meanwhile, or too many wait already
    (then it was not sent)."""


class RequestTimeoutError(RequestError):
    """A request was sent, and no reply came in time. ``broker`` is the name of the one that took
    it, ``spent_ms`` how long was waited."""

    code: ClassVar[int] = ClientErrorCode.REQUEST_TIMEOUT

    def __init__(
        self, text: str, *, topic: str = "", broker: str = "", spent_ms: float = 0.0
    ) -> None:
        super().__init__(text)
        self.topic = topic
        self.broker = broker
        self.spent_ms = spent_ms


class ReplyError(ClientError):
    """A reply did not reach the producer that asked: no broker took it, or that producer is gone.
    ``client_id`` is the one who asked; ``code`` that of the broker's last answer, or as that of a
    ``SendError``."""

    def __init__(self, text: str, *, client_id: str = "", code: int | None = None) -> None:
        super().__init__(text)
        self.client_id = client_id
        self.code = code


class MessageNotFoundError(ClientError):
    """No broker has the message that was asked for; the text says where it was looked for."""


class ResendError(ClientError):
    """Dead letters cannot be resent now: somebody else is resending them, or the journal of earlier
    resends cannot be read."""


class NotStartedError(ClientError):
    """Used before ``start``, after ``close``, or in a process forked from the one that started
    it."""


# What the data source and the pipelines on Spark raise. They are here so that a program can name
# them without Spark.
class DataLossError(ClientError):
    """Messages of an asked range are no longer (or not) in the broker, or are damaged."""


class WriteError(ClientError):
    """Rows that no broker took: the text names the first of them, why, and how many of the task's
    rows are stored."""


class LakeError(TurbopumpError):
    """A lake that cannot be read or written as asked; the text says what to do."""


class LakeInUseError(LakeError):
    """Another process writes to the lake."""


class OffsetGapError(LakeError):
    """A batch does not begin where the table ends: rows would be missing or there twice."""


class PipelineError(TurbopumpError):
    """Failure of Spark, in one sentence."""


class MissingExtraError(TurbopumpError, ModuleNotFoundError):
    """A package of an extra is not installed; ``name`` is its module."""
