"""The id of a replica survives a crash between any two of its steps."""

from pathlib import Path

import pytest

from turbopump.broker.replica.identity import Claim, Identity
from turbopump.disk.system_disk import SystemDisk
from turbopump.errors import ConfigError

CLAIM = Claim(3, "10.0.0.1:10911;1700000000000;7")


def identity(directory: Path, name: str = "b") -> Identity:
    return Identity(SystemDisk(), directory / "store" / "brokerIdentity", "c", name)


def test_the_files_are_apaches(tmp_path: Path) -> None:
    one = identity(tmp_path)
    one.write_claim(CLAIM)
    temporary = tmp_path / "store" / "brokerIdentity-temp"
    assert temporary.read_text() == "c#b#3#10.0.0.1:10911;1700000000000;7"
    one.keep(3)
    assert (tmp_path / "store" / "brokerIdentity").read_text() == "c#b#3"
    assert not temporary.exists()


def test_a_claim_is_repeated_after_a_crash_before_its_answer(tmp_path: Path) -> None:
    identity(tmp_path).write_claim(CLAIM)
    again = identity(tmp_path)
    assert (again.load(), again.load_claim()) == (None, CLAIM)


def test_after_a_crash_between_the_last_two_steps_the_id_counts(tmp_path: Path) -> None:
    identity(tmp_path).write_claim(CLAIM)
    (tmp_path / "store" / "brokerIdentity").write_text("c#b#3")
    again = identity(tmp_path)
    assert (again.load(), again.load_claim()) == (3, None)


def test_a_refused_claim_is_forgotten(tmp_path: Path) -> None:
    one = identity(tmp_path)
    one.write_claim(CLAIM)
    one.drop_claim()
    assert one.load_claim() is None


@pytest.mark.parametrize("text", ["", "c#b", "c#b#x", "c#b#0", "c#b#-1"])
def test_a_damaged_file_is_no_new_id(tmp_path: Path, text: str) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "brokerIdentity").write_text(text)
    with pytest.raises(ConfigError, match="damaged"):
        identity(tmp_path).load()


def test_a_damaged_claim_is_made_again(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "brokerIdentity-temp").write_text("c#b#3")
    assert identity(tmp_path).load_claim() is None


def test_the_id_of_another_broker_is_refused(tmp_path: Path) -> None:
    one = identity(tmp_path)
    one.write_claim(CLAIM)
    with pytest.raises(ConfigError, match="belongs to brokerClusterName=c brokerName=b"):
        identity(tmp_path, "other").load_claim()
    one.keep(3)
    with pytest.raises(ConfigError, match="belongs to brokerClusterName=c brokerName=b"):
        identity(tmp_path, "other").load()
