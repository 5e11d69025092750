"""Message ids: where a message is, and who made it when."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turbopump.errors import ProtocolError
from turbopump.message.ids import UniqueIds, decode_offset_msg_id, offset_msg_id, packed_ip

DECEMBER_31 = 1_735_689_599_999
"""2024-12-31 23:59:59.999 UTC."""


class Clock:
    def __init__(self, now_ms: int) -> None:
        self.now = now_ms

    def now_ms(self) -> int:
        return self.now

    def monotonic(self) -> float:
        return 0.0


def test_an_offset_id_is_host_port_and_offset_in_upper_hex() -> None:
    assert offset_msg_id("192.168.0.1", 10911, 255) == "C0A8000100002A9F00000000000000FF"


@given(st.ip_addresses(), st.integers(0, 65535), st.integers(0, 2**63 - 1))
def test_an_offset_id_is_read_back(ip: object, port: int, offset: int) -> None:
    msg_id = offset_msg_id(str(ip), port, offset)
    assert len(msg_id) in (32, 56)
    assert decode_offset_msg_id(msg_id) == (str(ip), port, offset)
    assert decode_offset_msg_id(msg_id.lower()) == (str(ip), port, offset)


@pytest.mark.parametrize("text", ["", "00", "0" * 31, "0" * 34, "G" * 32, "0" * 55, "é" * 32])
def test_what_is_no_offset_id_is_refused(text: str) -> None:
    with pytest.raises(ProtocolError, match="is not an offset message id"):
        decode_offset_msg_id(text)


def test_a_unique_id_is_host_process_token_time_and_counter() -> None:
    clock = Clock(1_733_011_200_000 + 0x1234)  # 2024-12-01 00:00 UTC and a little
    ids = UniqueIds(clock, ip="10.0.0.1", token=0xAABBCCDD, pid=0x12345)
    assert ids.next() == "0A0000012345AABBCCDD000012340001"
    assert ids.next() == "0A0000012345AABBCCDD000012340002"


def test_unique_ids_stay_unique_past_the_counter_and_start_again_with_the_month() -> None:
    clock = Clock(DECEMBER_31)
    ids = UniqueIds(clock, ip="10.0.0.1", token=1, pid=1)
    made = [ids.next() for _ in range(0x10000)]
    assert len(set(made)) == 0x10000
    assert made[0][20:28] == f"{31 * 86_400_000 - 1:08X}"
    clock.now += 1
    assert ids.next()[20:28] == "00000000", "a new year is a new month"


def test_ipv6_ids_are_longer() -> None:
    assert len(UniqueIds(Clock(0), ip="::1", token=1).next()) == 56
    with pytest.raises(ValueError, match="not appear to be"):
        packed_ip("localhost")
