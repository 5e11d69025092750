"""Certificates of a test, in files."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

from turbopump.cli.tls import self_signed_pair
from turbopump.config.tls import ClientAuth, ClientTls, ServerTls, TlsMode


class Pair:
    """A certificate and its key, in two files of a directory."""

    def __init__(
        self, directory: Path, name: str = "server", host: str = "127.0.0.1", password: str = ""
    ) -> None:
        self.certificate = str(directory / f"{name}.pem")
        self.key = str(directory / f"{name}-key.pem")
        self.password = password
        self.make(host)

    def make(self, host: str = "127.0.0.1", days: float = 365) -> None:
        """Write new ones, that are valid for so many days."""
        end = datetime.now(UTC) + timedelta(days=days)
        texts = self_signed_pair([host], end - timedelta(days=400), end, self.password.encode())
        for path, text in zip((self.certificate, self.key), texts, strict=True):
            Path(path).write_bytes(text)

    def server(
        self, mode: TlsMode = TlsMode.PERMISSIVE, *, ask: ClientAuth | None = None, trust: str = ""
    ) -> ServerTls:
        return ServerTls(
            mode=mode,
            certificate=self.certificate,
            key=self.key,
            key_password=self.password,
            client_auth=ask or ClientAuth.NONE,
            trust=trust,
        )

    def trusted(self, shown: "Pair | None" = None) -> ClientTls:
        """A client that trusts this one, and shows the other."""
        return ClientTls(
            trust=self.certificate, certificate=shown and shown.certificate, key=shown and shown.key
        )
