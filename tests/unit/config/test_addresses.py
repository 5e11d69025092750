"""Addresses as text."""

import pytest

from turbopump.config.addresses import (
    is_loopback,
    is_of_this_machine,
    is_wildcard,
    join_address,
    outward_address,
    parse_address,
    parse_addresses,
    split_host_port,
)
from turbopump.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("127.0.0.1:9876", ("127.0.0.1", 9876)),
        ("namesrv:1", ("namesrv", 1)),
        ("[::1]:9876", ("::1", 9876)),
        (" a.b-c_d:65535 ", ("a.b-c_d", 65535)),
    ],
)
def test_an_address_is_a_host_and_a_port(text: str, found: tuple[str, int]) -> None:
    assert parse_address(text) == found
    assert parse_address(join_address(*found)) == found


@pytest.mark.parametrize(
    "text",
    ["", "host", ":9876", "host:", "host:0", "host:65536", "host:x", "http://h:1", "a b:1", "h:١"],
)
def test_anything_else_is_refused_in_a_sentence_that_shows_it(text: str) -> None:
    with pytest.raises(ConfigError, match="expected") as refused:
        parse_address(text)
    assert repr(text) in str(refused.value)


def test_a_port_may_be_left_out_where_it_is_known_otherwise() -> None:
    assert split_host_port("example.org") == ("example.org", None)
    assert split_host_port("::1") == ("::1", None)
    assert split_host_port("[::1]") == ("::1", None)
    assert split_host_port("example.org:80") == ("example.org", 80)


def test_a_list_is_separated_by_semicolons_and_each_part_checked() -> None:
    assert parse_addresses("a:1; b:2;") == ["a:1", "b:2"]
    assert parse_addresses("") == []
    with pytest.raises(ConfigError, match="namesrvAddr 'b'"):
        parse_addresses("a:1;b", what="namesrvAddr")


def test_only_this_machine_reaches_loopback() -> None:
    assert [is_loopback(host) for host in ("127.0.0.1", "127.8.8.8", "::1", "localhost")] == [
        True
    ] * 4
    assert [is_loopback(host) for host in ("0.0.0.0", "::", "10.0.0.1", "example.org", "")] == [
        False
    ] * 5


def test_a_wildcard_is_every_interface() -> None:
    assert [is_wildcard(host) for host in ("0.0.0.0", "::", "")] == [True] * 3
    assert [is_wildcard(host) for host in ("127.0.0.1", "example.org")] == [False] * 2


def test_the_outward_address_can_be_connected_to() -> None:
    assert not is_wildcard(outward_address())


def test_an_address_of_this_machine_can_be_listened_on() -> None:
    assert is_of_this_machine("127.0.0.1")
    assert not is_of_this_machine("192.0.2.7")
    assert not is_of_this_machine("localhost")
