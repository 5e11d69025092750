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
        │   └── TopicNotFoundError  the topic does not exist; also a NotFoundError
        ├── NotFoundError           a group, broker, cluster or user that does not exist
        │   └── MessageNotFoundError no broker has the message
        ├── SendError               no broker accepted the message
        ├── RequestError            a request that was sent got no reply
        │   └── RequestTimeoutError no reply arrived in time
        ├── ReplyError              a reply did not reach its producer
        ├── ResendError             dead letters cannot be resent now
        ├── MirrorError             a topic or queue cannot be mirrored
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
"""Note that is added to an error whose cause may be another server. The command line shows it
too."""
NO_PERMISSION: Final = 16
"""Response code of a request that was denied."""


class ClientErrorCode(IntEnum):
    """Code of an error that did not come from a server.

    Source: apache/rocketmq ``ClientErrorCode``.
    """

    CONNECT_BROKER = 10001
    ACCESS_BROKER_TIMEOUT = 10002
    BROKER_NOT_EXIST = 10003
    NO_NAME_SERVER = 10004
    NOT_FOUND_TOPIC = 10005
    REQUEST_TIMEOUT = 10006


class TurbopumpError(Exception):
    """Base class of all errors that this package raises."""

    def __reduce__(self) -> tuple[object, ...]:
        return (
            _made_again,
            (type(self), self.args),
            self.__dict__,
        )  # Exception's own would call the class with nothing but its text


def _made_again(kind: type[TurbopumpError], args: tuple[object, ...]) -> TurbopumpError:
    return kind.__new__(kind, *args)


class ConfigError(TurbopumpError):
    """Raised when a configuration key, a value or an option is invalid. The text says what is
    expected."""


class MessageError(TurbopumpError):
    """Raised when a message may not be sent, for example because its topic is illegal or its body
    is too large."""


class ProtocolError(TurbopumpError):
    """Raised when bytes violate the protocol or a file format."""


class FrameError(ProtocolError):
    """Raised when a frame has impossible lengths or an unknown serialize type.

    The connection must be closed then.
    """


class HeaderError(ProtocolError):
    """Raised when the header of a command cannot be decoded."""


class BodyError(ProtocolError):
    """Raised when the body of a command cannot be decoded."""


class StoredMessageError(ProtocolError):
    """Raised when the bytes of a stored message contradict its lengths or its magic number."""


class RemotingError(TurbopumpError):
    """Raised when a call to another process over the network has failed."""


class ConnectError(RemotingError):
    """Raised when no connection to a peer can be opened.

    ``code`` is CONNECT_BROKER, or BROKER_NOT_EXIST if the peer's address is unknown.
    """

    def __init__(self, text: str, *, code: int = ClientErrorCode.CONNECT_BROKER) -> None:
        super().__init__(text)
        self.code = code
        self.add_note(SEE_DOCTOR)


class ConnectionLostError(RemotingError):
    """Raised when a connection ended before the answer arrived.

    The peer may have executed the request.
    """


class CallTimeoutError(RemotingError):
    """Raised when no answer to a request arrived in time.

    The peer may have executed the request.
    """

    code: ClassVar[int] = ClientErrorCode.ACCESS_BROKER_TIMEOUT


class ResponseError(RemotingError):
    """Raised when a peer has answered a request with an error code.

    - ``code``: response code (see ``turbopump.protocol.codes.ResponseCode``).
    - ``remark``: text of the peer.
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
    """Raised when the store directory cannot be used as requested."""


class StoreLockedError(StoreError):
    """Raised when another process has opened the store directory."""


class ReadsRefusedError(StoreError):
    """Raised when a read is refused because too many reads are waiting for the disk.

    Nothing was read; retry in a moment. A server answers with code 2, and clients retry.
    """

    def __init__(self) -> None:
        super().__init__("too many reads wait for the broker's disk; ask again in a moment")


class RoomInMakingError(StoreError):
    """Raised when the next file of the log is not created yet.

    Nothing was stored. Retry when the file exists.
    """


class StoreClosedError(StoreError):
    """Raised when the store is closed or refuses writes."""


class CopyError(StoreError):
    """Raised when bytes from a master cannot be the next entry of its slave's log.

    The text has the reason.
    """


class StoreDamagedError(StoreError):
    """Raised when store files contradict each other or their format."""


class ClientError(TurbopumpError):
    """Raised when an operation of a producer or consumer has failed."""


class RouteNotFoundError(ClientError):
    """Raised when no broker is known for a topic.

    ``code`` is NOT_FOUND_TOPIC, or NO_NAME_SERVER if no name server answered.
    """

    def __init__(self, text: str, *, code: int = ClientErrorCode.NOT_FOUND_TOPIC) -> None:
        super().__init__(text)
        self.code = code
        if "turbopump doctor" not in text:
            self.add_note(SEE_DOCTOR)


class NotFoundError(ClientError):
    """Raised when a topic, a group, a broker, a cluster or a user does not exist. The text suggests
    a similar name."""


class TopicNotFoundError(RouteNotFoundError, NotFoundError):
    """Raised when the name servers answer, and no broker has the topic."""


class SendError(ClientError):
    """Raised when no broker has accepted a message. The text lists the attempts.

    - ``brokers``: names of the brokers that were tried, in order.
    - ``spent_ms``: time spent on all attempts.
    - ``code``: code of the last answer. Without an answer it is a ``ClientErrorCode``, or None.
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
    """Raised when a request will get no reply.

    The producer was closed in the meantime, or too many requests were waiting. In the latter case
    the request was not sent.
    """


class RequestTimeoutError(RequestError):
    """Raised when a request was sent, and no reply arrived in time.

    - ``broker``: name of the broker that accepted the request.
    - ``spent_ms``: time waited.
    """

    code: ClassVar[int] = ClientErrorCode.REQUEST_TIMEOUT

    def __init__(
        self, text: str, *, topic: str = "", broker: str = "", spent_ms: float = 0.0
    ) -> None:
        super().__init__(text)
        self.topic = topic
        self.broker = broker
        self.spent_ms = spent_ms


class ReplyError(ClientError):
    """Raised when a reply has not reached the producer that sent the request.

    No broker accepted the reply, or that producer is gone.

    - ``client_id``: id of that producer.
    - ``code``: code of the broker's last answer, or as in a ``SendError``.
    """

    def __init__(self, text: str, *, client_id: str = "", code: int | None = None) -> None:
        super().__init__(text)
        self.client_id = client_id
        self.code = code


class MessageNotFoundError(NotFoundError):
    """Raised when no broker has the message. The text lists the searched places."""


class ResendError(ClientError):
    """Raised when dead letters cannot be resent now.

    Another process is resending them, or the journal of earlier resends cannot be read.
    """


class MirrorError(ClientError):
    """Raised when a topic or a queue cannot be mirrored. The text says what to do."""


class NotStartedError(ClientError):
    """Raised when an object is used before ``start``, after ``close``, or in a forked process."""


# Errors of the data source and the pipelines on Spark. They are here so that a program can name
# them without Spark.
class DataLossError(ClientError):
    """Raised when messages of a requested range are damaged or not in the broker.

    Messages that are not there are deleted, or not stored yet.
    """


class WriteError(ClientError):
    """Raised when no broker has accepted some rows that Spark writes.

    The text has the first of these rows, the reason, and the number of the task's rows that are
    stored.
    """


class LakeError(TurbopumpError):
    """Raised when a lake cannot be read or written as requested. The text says what to do."""


class LakeInUseError(LakeError):
    """Raised when another process is writing to the lake."""


class OffsetGapError(LakeError):
    """Raised when a batch does not begin at the end of the table.

    Rows would be missing or duplicated.
    """


class PipelineError(TurbopumpError):
    """Raised when a run of Spark has failed. The text has the reason in one sentence."""


class MissingExtraError(TurbopumpError, ModuleNotFoundError):
    """Raised when a package of an optional extra is not installed.

    ``name`` is the module of the package.
    """
