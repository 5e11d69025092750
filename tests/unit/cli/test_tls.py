"""`turbopump tls`: certificates for servers that have none."""

import stat
import subprocess
from collections.abc import Callable
from pathlib import Path

from turbopump.config.namesrv_config import load_namesrv_config
from turbopump.remoting.tls import ServerContext

Run = Callable[..., "subprocess.CompletedProcess[str]"]


def test_a_pair_is_made_and_the_lines_for_a_server_are_printed(run: Run, tmp_path: Path) -> None:
    done = run(
        "tls", "self-signed", str(tmp_path / "certs"), "--host", "a.example", "--host", "::1"
    )
    assert done.returncode == 0
    assert "a certificate for a.example, ::1, until " in done.stdout
    conf = tmp_path / "namesrv.conf"
    conf.write_text(done.stdout)
    tls = load_namesrv_config(conf).server_tls
    ServerContext(tls)
    assert stat.S_IMODE(Path(tls.key).stat().st_mode) == 0o600
    again = run("tls", "self-signed", str(tmp_path / "certs"))
    assert again.returncode == 2
    assert "tls-key.pem is there already" in again.stderr


def test_a_host_that_no_certificate_can_name_is_refused(run: Run, tmp_path: Path) -> None:
    done = run("tls", "self-signed", str(tmp_path), "--host", "größe")
    assert done.returncode == 2
    assert "--host größe: a name in ASCII or an address is expected" in done.stderr
    assert not list(tmp_path.iterdir())
