"""Errors that Turbopump raises.

::

    TurbopumpError
    ├── ConfigError                 a key, a value or an option that cannot be used
    ├── MessageError                a message that may not be sent (topic name, size, properties)
    ├── ProtocolError               bytes that violate the protocol or a file format
    │   ├── FrameError              the frame itself: length, header length, serialize type
    │   ├── HeaderError             a header that cannot be decoded
    │   ├── BodyError               a body that cannot be decoded (FastjsonError is one)
    │   └── StoredMessageError      a stored entry that cannot be decoded
    ├── RemotingError               a call to a peer that failed
    │   ├── ConnectError            no connection to the peer
    │   ├── ConnectionLostError     the connection ended before the answer arrived
    │   ├── CallTimeoutError        no answer in time
    │   └── ResponseError           the peer answered with an error code and a remark
    ├── StoreError                  the store directory cannot be used as requested
    │   ├── StoreLockedError        another process has the directory open
    │   ├── ReadsRefusedError       too many reads wait for the disk: try again
    │   ├── RoomInMakingError       the next file of the log is not created yet: try again
    │   ├── StoreClosedError        the store was closed, or refuses writes
    │   ├── CopyError               bytes from a master are not its slave's next entry
    │   └── StoreDamagedError       files that contradict each other or their format
    ├── LakeError                   a lake that cannot be read or written as requested
    │   ├── LakeInUseError          another process writes to it
    │   └── OffsetGapError          a batch does not begin at the end of the table
    ├── PipelineError               Spark failed
    ├── MissingExtraError           a package that is not installed; also a ModuleNotFoundError
    └── ClientError                 a producer or consumer failed
        ├── RouteNotFoundError      no broker is known for the topic
        ├── SendError               no broker accepted the message
        ├── RequestError            a request that was sent got no reply
        │   └── RequestTimeoutError no reply arrived in time
        ├── ReplyError              a reply did not reach its producer
        ├── MessageNotFoundError    no broker has the message
        ├── ResendError             dead letters cannot be resent now
        ├── DataLossError           Spark: messages of a requested range are gone or damaged
        ├── WriteError              Spark: rows that no broker accepted
        └── NotStartedError         used before start, after close, or in a forked child

Local mistakes (ConfigError, MessageError) are raised before anything is sent; ResponseError is the
peer's answer. Every error can be pickled and copied with its attributes, for example from a worker
of a process pool.
"""

from __future__ import annotations

from enum import IntEnum
from typing import ClassVar, Final

SEE_DOCTOR: Final = "`turbopump doctor` looks at the servers, and says what is wrong"
"""Note added to an error whose cause may be another server. The command line shows it too."""
NO_PERMISSION: Final = 16
"""Response code of a denied request."""


class ClientErrorCode(IntEnum):
    """Code of an error that did not come from a server. Source: apache/rocketmq
    ``ClientErrorCode``."""

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
    """A configuration key, value or option is invalid. The text names it and says what is
    expected."""


class MessageError(TurbopumpError):
    """A message may not be sent: illegal topic, empty or oversized body, oversized properties."""


class ProtocolError(TurbopumpError):
    """Bytes violate the protocol or a file format."""


class FrameError(ProtocolError):
    """A frame has impossible lengths or an unknown serialize type; the connection must be
    closed."""


class HeaderError(ProtocolError):
    """The header of a command cannot be decoded."""


class BodyError(ProtocolError):
    """The body of a command cannot be decoded."""


class StoredMessageError(ProtocolError):
    """The bytes of a stored message contradict its own lengths or magic."""


class RemotingError(TurbopumpError):
    """A call to a peer failed."""


class ConnectError(RemotingError):
    """The connection to a peer failed. ``code`` is CONNECT_BROKER, or BROKER_NOT_EXIST if the
    peer's address is unknown."""

    def __init__(self, text: str, *, code: int = ClientErrorCode.CONNECT_BROKER) -> None:
        super().__init__(text)
        self.code = code
        self.add_note(SEE_DOCTOR)


class ConnectionLostError(RemotingError):
    """The connection ended before the answer arrived. The peer may have executed the request."""


class CallTimeoutError(RemotingError):
    """No answer arrived in time. The peer may have executed the request."""

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
    """The store directory cannot be used as requested."""


class StoreLockedError(StoreError):
    """Another process has the store directory open."""


class ReadsRefusedError(StoreError):
    """Too many reads wait for the disk. Nothing was read; retry in a moment. A server answers with
    code 2, and clients retry."""

    def __init__(self) -> None:
        super().__init__("too many reads wait for the broker's disk; ask again in a moment")


class RoomInMakingError(StoreError):
    """The next file of the log is not created yet. Nothing was stored; retry when the file
    exists."""


class StoreClosedError(StoreError):
    """The store is closed or refuses writes."""


class CopyError(StoreError):
    """Bytes from a master cannot be the next entry of its slave's log. The text has the reason."""


class StoreDamagedError(StoreError):
    """Store files contradict each other or their format."""


class ClientError(TurbopumpError):
    """A producer or consumer failed."""


class RouteNotFoundError(ClientError):
    """No broker is known for a topic. ``code`` is NOT_FOUND_TOPIC, or NO_NAME_SERVER if no name
    server answered."""

    def __init__(self, text: str, *, code: int = ClientErrorCode.NOT_FOUND_TOPIC) -> None:
        super().__init__(text)
        self.code = code
        if "turbopump doctor" not in text:
            self.add_note(SEE_DOCTOR)


class SendError(ClientError):
    """No broker accepted the message. The text lists the attempts.

    ``brokers`` are the names of the brokers that were tried, in order. ``code`` is that of the last
    answer; without an answer it is a ``ClientErrorCode``, or None.
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
    """A request will get no reply: the producer was closed meanwhile, or too many requests are
    waiting (then it was not sent)."""


class RequestTimeoutError(RequestError):
    """A request was sent, and no reply arrived in time. ``broker`` is the name of the broker that
    accepted the request, ``spent_ms`` the time waited."""

    code: ClassVar[int] = ClientErrorCode.REQUEST_TIMEOUT

    def __init__(
        self, text: str, *, topic: str = "", broker: str = "", spent_ms: float = 0.0
    ) -> None:
        super().__init__(text)
        self.topic = topic
        self.broker = broker
        self.spent_ms = spent_ms


class ReplyError(ClientError):
    """A reply did not reach the producer that sent the request: no broker accepted the reply, or
    that producer is gone.

    ``client_id`` is the id of that producer. ``code`` is that of the broker's last answer, or as in
    a ``SendError``.
    """

    def __init__(self, text: str, *, client_id: str = "", code: int | None = None) -> None:
        super().__init__(text)
        self.client_id = client_id
        self.code = code


class MessageNotFoundError(ClientError):
    """No broker has the message. The text says where it was searched for."""


class ResendError(ClientError):
    """Dead letters cannot be resent now: another process is resending them, or the journal of
    earlier resends cannot be read."""


class NotStartedError(ClientError):
    """The object was used before ``start``, after ``close``, or in a process forked from the one
    that started it."""


# Errors of the data source and the pipelines on Spark. They are here so that a program can name
# them without Spark.
class DataLossError(ClientError):
    """Messages of a requested range are damaged, or not in the broker (deleted, or not yet
    stored)."""


class WriteError(ClientError):
    """No broker accepted some rows. The text has the first of them, the reason, and the number of
    the task's rows that are stored."""


class LakeError(TurbopumpError):
    """A lake cannot be read or written as requested. The text says what to do."""


class LakeInUseError(LakeError):
    """Another process writes to the lake."""


class OffsetGapError(LakeError):
    """A batch does not begin at the end of the table: rows would be missing or duplicated."""


class PipelineError(TurbopumpError):
    """Spark failed. The text has the reason in one sentence."""


class MissingExtraError(TurbopumpError, ModuleNotFoundError):
    """A package of an extra is not installed; ``name`` is its module."""
