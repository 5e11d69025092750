"""Network addresses as text: `host:port`, lists of them, and loopback hosts.

This module never looks up a name and never sends a packet.
"""

import ipaddress
import socket

from turbopump.errors import ConfigError

LOOPBACK = "127.0.0.1"


def parse_address(text: str, *, what: str = "address") -> tuple[str, int]:
    """Split an address such as `10.0.0.5:9876` or `[::1]:9876` into host and port.

    The results here are `("10.0.0.5", 9876)` and `("::1", 9876)`. Raise ConfigError for other text,
    with `what` as the name of the setting.
    """
    host, port = split_host_port(text, what=what)
    if port is None:
        raise ConfigError(
            f"{what} {text!r} has no port: expected HOST:PORT, such as 127.0.0.1:9876"
        )
    return host, port


def split_host_port(text: str, *, what: str = "address") -> tuple[str, int | None]:
    """Split an address into host and port. The port is None if the address has none.

    Raise ConfigError for invalid text, as `parse_address` does.
    """
    text = text.strip()
    if "," in text:
        raise ConfigError(f"{what} {text!r} contains a comma: separate several with ;")
    host, colon, port = text.rpartition(":")
    if not colon or text.endswith("]") or (text.count(":") > 1 and not text.startswith("[")):
        host, port = text, ""
    host = host.removeprefix("[").removesuffix("]")
    if not host or any(char.isspace() or char in "/;,@[]" for char in host):
        raise ConfigError(
            f"{what} {text!r} has no valid host: expected HOST:PORT, such as 127.0.0.1:9876"
        )
    if not port:
        if colon and text.endswith(":") and text.count(":") == 1:
            raise ConfigError(f"{what} {text!r} has no port after the colon: expected HOST:PORT")
        return host, None
    if not (port.isascii() and port.isdigit() and len(port) <= 5 and 0 < int(port) <= 65535):
        raise ConfigError(f"{what} {text!r} has no valid port: expected a number from 1 to 65535")
    return host, int(port)


def name_fault(host: str) -> str | None:
    """Return the reason why a host name is invalid, or None.

    Python encodes a host name (IDNA) before it asks the system. For an invalid name it raises
    UnicodeError, which is no OSError.
    """
    try:
        host.encode("idna")
    except UnicodeError:
        pass
    else:
        if host.isprintable():  # TLS raises ValueError for a zero byte
            return None
    return (
        f"{host[:80]!r} is not a host name: each part between dots has 1 to 63 letters, "
        "digits or hyphens"
    )


def bare_host(host: str) -> str:
    """Return a host without the brackets around an IPv6 address.

    Apache's brokers need the brackets in `brokerIP1`.
    """
    return host[1:-1] if host.startswith("[") and host.endswith("]") else host


def is_ip_address(host: str) -> bool:
    """Return True if a text is an IP address; one of IPv6 may be in brackets."""
    try:
        ipaddress.ip_address(bare_host(host))
    except ValueError:
        return False
    return True


def check_host(host: str, *, what: str) -> None:
    """Raise ConfigError unless a text is an IP address or a host name, without a port.

    ``what`` names the setting in the error.
    """
    if is_ip_address(host):
        return
    fault = name_fault(host)
    if fault is not None:
        raise ConfigError(f"{what}: {fault}")
    if any(char.isspace() or char in ":/;,@[]" for char in host):
        raise ConfigError(
            f"{what}={host} is not a host: expected an IP address or a host name, without "
            "port and without http://"
        )


def parse_addresses(text: str, *, what: str = "name server address") -> list[str]:
    """Return the addresses in a list separated by `;`, the form of Apache's `namesrvAddr`.

    Raise ConfigError for an invalid address. An empty text has no addresses.
    """
    addresses = [part.strip() for part in text.split(";") if part.strip()]
    for address in addresses:
        parse_address(address, what=what)
    return addresses


def join_address(host: str, port: int) -> str:
    """Return `host:port`, with brackets around an IPv6 host."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def host_of(address: str) -> str:
    """Return the host in an address from ``join_address``."""
    return address.rpartition(":")[0].strip("[]")


def is_loopback(host: str) -> bool:
    """Return True if only this machine can reach `host`.

    A host name other than localhost counts as reachable from elsewhere.
    """
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_wildcard(host: str) -> bool:
    """Return True for an address such as 0.0.0.0 that means all interfaces.

    Clients cannot connect to such an address.
    """
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return host == ""


def is_of_this_machine(host: str) -> bool:
    """Return True if a host is the address of one of this machine's interfaces.

    Return False for names, which are not looked up.
    """
    try:
        version = ipaddress.ip_address(host).version
    except ValueError:
        return False
    try:
        with socket.socket(socket.AF_INET6 if version == 6 else socket.AF_INET) as probe:
            probe.bind((host, 0))
    except OSError:
        return False
    return True


def outward_address() -> str:
    """Return this machine's address for other machines, or loopback if there is no such address.

    Apache's broker advertises this address unless `brokerIP1` is set. Connecting a UDP socket makes
    the kernel choose an interface and sends nothing. 192.0.2.1 is a documentation address (RFC
    5737).
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
            return str(probe.getsockname()[0])
        except OSError:
            return LOOPBACK
