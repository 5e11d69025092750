"""`turbopump tls`: self-signed certificates for servers."""

from __future__ import annotations

import ipaddress
import os
import socket
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import click

from turbopump.cli.log_output import log_options
from turbopump.config.addresses import outward_address
from turbopump.config.properties import encode
from turbopump.errors import ConfigError

CERTIFICATE_FILE: Final = "tls-certificate.pem"
KEY_FILE: Final = "tls-key.pem"
CLOCKS_DIFFER: Final = timedelta(hours=1)


@click.group(name="tls", help="Certificates for servers that have none.")
def command() -> None:
    pass


@command.command(name="self-signed")
@click.argument("directory", type=click.Path(file_okay=False))
@click.option(
    "--host",
    "hosts",
    multiple=True,
    help="Name or address that clients use; may be given again.  [default: this machine's]",
)
@click.option(
    "--days",
    type=click.IntRange(1, 3650),
    default=365,
    help="Validity of the certificate, in days.",
)
@log_options("warning", plain=True)
def self_signed(directory: str, hosts: Sequence[str], days: int) -> None:
    """Create a certificate and its key in DIRECTORY.

    The certificate is self-signed: clients that check it need the file of the certificate.
    """
    hosts = tuple(hosts) or tuple(
        dict.fromkeys(["localhost", "127.0.0.1", socket.gethostname(), outward_address()])
    )
    now = datetime.now(UTC)
    certificate, key = self_signed_pair(hosts, now - CLOCKS_DIFFER, now + timedelta(days=days))
    folder = Path(directory)
    paths = folder / CERTIFICATE_FILE, folder / KEY_FILE
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path, data, mode in ((paths[1], key, 0o600), (paths[0], certificate, 0o644)):
            with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
                file.write(data)
    except FileExistsError as error:
        raise ConfigError(
            f"{error.filename} already exists: move it, or give another directory"
        ) from None
    except OSError as error:
        raise ConfigError(f"{error.filename} cannot be written: {error.strerror}") from None
    click.echo(f"# a certificate for {', '.join(hosts)}, until {now + timedelta(days=days):%F}")
    click.echo("# for servers (-c FILE):")
    click.echo(encode({"tls.server.certPath": str(paths[0].resolve())}), nl=False)
    click.echo(encode({"tls.server.keyPath": str(paths[1].resolve())}), nl=False)
    click.echo("# as clients of one another, with tls.server.mode=enforcing or tls.enable=true:")
    click.echo(encode({"tls.client.trustCertPath": str(paths[0].resolve())}), nl=False)
    click.echo(f"# for clients: --tls-trust {paths[0].resolve()}")


def self_signed_pair(
    hosts: Sequence[str], begin: datetime, end: datetime, password: bytes = b""
) -> tuple[bytes, bytes]:
    """Create a self-signed certificate and its key, and return both as PEM.

    The key is a P-256 key in PKCS 8, encrypted if there is a password. Raises ConfigError if the
    extra ``tls`` is not installed.
    """
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
    except ImportError:
        raise ConfigError(
            "to make a certificate needs the package cryptography: pip install 'turbopump[tls]'"
        ) from None
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, hosts[0][:64])])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(end)
        .add_extension(x509.SubjectAlternativeName(list(map(_alternative, hosts))), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    encryption: serialization.KeySerializationEncryption = serialization.NoEncryption()
    if password:
        encryption = serialization.BestAvailableEncryption(password)
    key_text = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption
    )
    return certificate.public_bytes(serialization.Encoding.PEM), key_text


def _alternative(host: str) -> Any:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(host.strip("[]")))
    except ValueError:
        pass
    try:
        return x509.DNSName(host)
    except ValueError:
        raise ConfigError(f"--host {host}: expected a name in ASCII or an address") from None
