"""Credentials: where they come from, that every request is signed, and that they show nowhere."""

from __future__ import annotations

import base64
import hmac
import logging
import pickle
from pathlib import Path

import pytest
from tests.spark.fake_cluster import FakeCluster
from tests.stand_ins import returns

from turbopump.auth.signatures import Credentials
from turbopump.errors import ConfigError, ResponseError
from turbopump.protocol.codes import RequestCode, ResponseCode
from turbopump.protocol.command import Command
from turbopump.spark.batch import BatchReader
from turbopump.spark.options import ReadOptions, read_options
from turbopump.spark.stream import StreamReader

SECRET = "s3cr3t-of-the-test"
NEEDED = {"nameServer": "127.0.0.1:9876", "topic": "T"}
KEYS = {"accessKey": "user", "secretKey": SECRET}


def signature(fields: dict[str, str]) -> str:
    """By the ruler of ``turbopump.auth.signatures``."""
    content = "".join(fields[name] for name in sorted(fields) if name != "Signature")
    return base64.b64encode(hmac.digest(SECRET.encode(), content.encode(), "sha1")).decode()


def test_every_request_of_a_read_is_signed() -> None:
    with FakeCluster({"T": 1}) as fake:
        fake.fill("T", 0, 40)
        given = {**NEEDED, **KEYS, "nameServer": fake.address, "startingTimestamp": "5"}
        reader = pickle.loads(pickle.dumps(BatchReader(read_options(given))))
        for task in reader.partitions():
            assert sum(batch.num_rows for batch in reader.read(task)) == 40
        stream = StreamReader(read_options({**given, "commitGroup": "g"}))
        stream.commit(stream.initialOffset())
        stream.stop()
        codes = {request.code for request in fake.requests}
        assert {
            RequestCode.GET_ROUTEINFO_BY_TOPIC,
            RequestCode.PULL_MESSAGE,
            RequestCode.GET_MAX_OFFSET,
            RequestCode.UPDATE_CONSUMER_OFFSET,
        } <= codes
        for request in fake.requests:
            assert request.ext is not None
            assert request.ext["AccessKey"] == "user"
            assert request.ext["Signature"] == signature(request.ext)


def test_requests_without_credentials_are_not_signed() -> None:
    with FakeCluster({"T": 1}) as fake:
        BatchReader(read_options({**NEEDED, "nameServer": fake.address}, {})).partitions()
        assert not any("Signature" in (request.ext or {}) for request in fake.requests)


def test_a_refusal_is_told_without_the_secret(caplog: pytest.LogCaptureFixture) -> None:
    with FakeCluster({"T": 1}) as fake, caplog.at_level(logging.DEBUG):
        fake.answer = returns(Command(ResponseCode.NO_PERMISSION, remark="No accessKey is set"))
        reader = BatchReader(read_options({**NEEDED, **KEYS, "nameServer": fake.address}))
        with pytest.raises(ResponseError, match="No accessKey is set") as caught:
            reader.partitions()
    assert SECRET not in f"{caught.value!r} {caught.getrepr(showlocals=True)} {caplog.text}"


def test_a_secret_shows_in_no_text_of_the_options() -> None:
    options = read_options({**NEEDED, **KEYS, "securityToken": "t0ken-of-the-test"})
    assert options.credentials == Credentials("user", SECRET, "t0ken-of-the-test")
    assert SECRET not in f"{options!r} {options}"
    assert "t0ken" not in f"{options!r} {options}"


@pytest.mark.parametrize(
    "wrong",
    [
        {**KEYS, "secretkee": SECRET},
        {"secretKey": SECRET},
        {**KEYS, "credentialsFile": "conf/tools.yml"},
        {**KEYS, "maxPartitions": "none"},
    ],
)
def test_no_error_of_options_shows_the_secret(wrong: dict[str, str]) -> None:
    with pytest.raises(ConfigError) as caught:
        read_options({**NEEDED, **wrong})
    assert SECRET not in str(caught.value)


def from_file(path: Path, text: str) -> ReadOptions:
    path.write_text(text)
    return read_options({**NEEDED, "credentialsFile": str(path)}, {"TURBOPUMP_ACCESS_KEY": "x"})


@pytest.mark.parametrize(
    "text",
    [
        f"accessKey: user\nsecretKey: {SECRET}\n",
        f"# mine\n\naccessKey=user\nsecretKey = {SECRET}",
        f"accessKey: \"user\"\nsecretKey: '{SECRET}'\n",
    ],
)
def test_credentials_may_stand_in_a_file(tmp_path: Path, text: str) -> None:
    assert from_file(tmp_path / "tools.yml", text).credentials == Credentials("user", SECRET)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"secretKey: {SECRET}\n", "needs an accessKey and a secretKey"),
        (f"accessKey: user\n{SECRET}\n", "line 2 is not accessKey: VALUE"),
        (f"accessKey: user\nsecret: {SECRET}\n", "line 2 is not accessKey: VALUE"),
        ("accessKey:\n", "line 1 is not accessKey: VALUE"),
    ],
)
def test_a_wrong_file_is_told_by_line_without_the_secret(
    tmp_path: Path, text: str, said: str
) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        from_file(tmp_path / "tools.yml", text)
    assert SECRET not in str(caught.value)


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"credentialsFile .* cannot be read: No such file"):
        read_options({**NEEDED, "credentialsFile": str(tmp_path / "none")})


def test_the_environment_counts_where_no_option_does() -> None:
    environment = {"TURBOPUMP_ACCESS_KEY": "user", "TURBOPUMP_SECRET_KEY": SECRET}
    assert read_options(NEEDED, environment).credentials == Credentials("user", SECRET)
    own = {**NEEDED, "accessKey": "me", "secretKey": "mine"}
    assert read_options(own, environment).credentials == Credentials("me", "mine")
    assert read_options(NEEDED, {}).credentials is None
    with pytest.raises(ConfigError, match="an accessKey is set without the other"):
        read_options(NEEDED, {"TURBOPUMP_ACCESS_KEY": "user"})
