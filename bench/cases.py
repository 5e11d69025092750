"""Table of the loads for both brokers. The one rule: a case has the same bytes for each broker. The
start of brokers and the display of numbers are unknown here."""

from dataclasses import dataclass

KIB = 1024
TOPIC_QUEUES = 8
PULL_TOPIC = "bench-pull"
INTERLEAVED_TOPIC = "bench-pull-interleaved"
PULL_FILL = 160_000
BROKER_NAME = "broker-a"


@dataclass(frozen=True, slots=True)
class Case:
    """One closed loop: `connections` x `outstanding` requests are under way at any time."""

    name: str
    title: str
    mode: str = "send"  # of the load generator: send, batch, pull
    connections: int = 1
    outstanding: int = 64
    body_size: int = KIB
    count: int = 1  # messages in a batch, or asked for by a pull
    sync_flush: bool = False
    apart: bool = False  # the broker keeps off the generator's core (cores.py says why)
    tls: bool = False  # both brokers have a certificate, and take plain text on the same port
    interleaved: bool = False  # what is pulled was sent message by message, round the queues

    @property
    def topic(self) -> str:
        if self.mode == "pull":
            return INTERLEAVED_TOPIC if self.interleaved else PULL_TOPIC
        return f"bench-{self.name}"

    def arguments(self) -> list[str]:
        """The load generator's options for this case."""
        return [
            *(
                "--mode",
                self.mode,
                "--topic",
                self.topic,
                "--broker",
                BROKER_NAME,
                "--queues",
                str(TOPIC_QUEUES),
            ),
            *("--connections", str(self.connections), "--outstanding", str(self.outstanding)),
            *("--size", str(self.body_size), "--count", str(self.count)),
            *(("--tls",) if self.tls else ()),
        ]


CASES = (
    Case("send-1k", "send 1 KiB, 1 connection, 64 outstanding"),
    Case("send-128", "send 128 B, 1 connection, 64 outstanding", body_size=128),
    # The pulls come early: what lies further back than 40 % of memory is given out 8 at a time, by
    # both brokers, and later cases write that much.
    # A consumer has one pull outstanding for each of its queues, all on one connection.
    Case(
        "pull-32",
        "pull 32 x 1 KiB, 8 queues, 1 outstanding each",
        mode="pull",
        outstanding=TOPIC_QUEUES,
        count=32,
    ),
    # As producers write them: neighbours in a queue lie apart in the log.
    Case(
        "pull-interleaved",
        "pull 32 x 1 KiB, interleaved over 8 queues, 4 outstanding",
        mode="pull",
        outstanding=4,
        count=32,
        interleaved=True,
    ),
    Case("round-trip", "send 1 KiB, 1 outstanding", outstanding=1, apart=True),
    Case(
        "connections-64",
        "send 1 KiB, 64 connections, 1 outstanding each",
        connections=64,
        outstanding=1,
    ),
    Case(
        "batch-32",
        "send batches of 32 x 1 KiB, 16 outstanding",
        mode="batch",
        outstanding=16,
        count=32,
    ),
    Case("tls-1k", "send 1 KiB over TLS, 1 connection, 64 outstanding", tls=True),
    Case("sync-flush", "send 1 KiB, SYNC_FLUSH, 64 outstanding", sync_flush=True),
)

# Fill the pull topics before they are measured; every queue gets the same share.
FILL = Case("fill", "fill the pull topic", mode="batch", outstanding=4, count=32)
FILL_ONE_BY_ONE = Case("fill-one-by-one", "fill the interleaved pull topic")
FILLS = {PULL_TOPIC: FILL, INTERLEAVED_TOPIC: FILL_ONE_BY_ONE}


def fill_arguments(topic: str) -> list[str]:
    """The load generator's options, but for a limit, that fill this topic; for those that need
    it."""
    return [*FILLS[topic].arguments(), "--topic", topic]
