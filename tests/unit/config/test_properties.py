"""Java .properties text, read and written."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turbopump.config.properties import decode, decode_text, encode
from turbopump.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a=b", {"a": "b"}),
        ("a = b", {"a": "b"}),
        ("a: b", {"a": "b"}),
        ("a b", {"a": "b"}),
        ("a\tb", {"a": "b"}),
        ("a=:b", {"a": ":b"}),
        ("a = = b", {"a": "= b"}),
        ("a", {"a": ""}),
        ("a=", {"a": ""}),
        ("=b", {"": "b"}),
        ("  a=b  ", {"a": "b  "}),
        ("# a=b\n! c=d\n  # e=f\ng=h", {"g": "h"}),
        ("a=b # not a comment", {"a": "b # not a comment"}),
        ("a=b\r\nc=d\re=f\n", {"a": "b", "c": "d", "e": "f"}),
        ("a=1\na=2", {"a": "2"}),
        ("\n\n \t\n", {}),
        ("", {}),
        ("a=b\\\n   c", {"a": "bc"}),
        ("a=b\\\r\n\tc", {"a": "bc"}),
        ("a=b\\\\\nc=d", {"a": "b\\", "c": "d"}),
        ("a=b\\\n# c", {"a": "b# c"}),
        ("a=b\\\n\nc=d", {"a": "b", "c": "d"}),
        ("a=b\\", {"a": "b"}),
        ("# comment \\\na=b", {"a": "b"}),
        ("a\\ b=c", {"a b": "c"}),
        ("a\\=b=c", {"a=b": "c"}),
        ("a\\:b:c", {"a:b": "c"}),
        ("path=C:\\\\dir", {"path": "C:\\dir"}),
        ("a=\\t\\n\\r\\f", {"a": "\t\n\r\f"}),
        ("a=\\q\\#", {"a": "q#"}),
        ("a=\\u4e2d\\u6587", {"a": "中文"}),
        ("a=\\ud83d\\ude00", {"a": "😀"}),
        ("namesrvAddr=10.0.0.1:9876;10.0.0.2:9876", {"namesrvAddr": "10.0.0.1:9876;10.0.0.2:9876"}),
        ("a=b\x0bc\u2028d", {"a": "b\x0bc\u2028d"}),
    ],
)
def test_text_is_read_as_java_reads_it(text: str, found: dict[str, str]) -> None:
    assert decode_text(text) == found


@pytest.mark.parametrize("text", ["a=\\u12", "a=\\uzzzz", "a=\\u+123"])
def test_a_malformed_unicode_escape_is_refused_in_one_sentence(text: str) -> None:
    with pytest.raises(ConfigError, match="expected four hexadecimal digits"):
        decode_text(text)


def test_a_file_is_read_as_utf_8_and_otherwise_as_java_does() -> None:
    assert decode("a=é".encode()) == {"a": "é"}
    assert decode("a=é".encode("latin-1")) == {"a": "é"}
    assert decode(b"\xef\xbb\xbfa=b") == {"a": "b"}


def test_what_is_written_is_ascii_and_escaped_as_java_does() -> None:
    assert encode({"a b": " c:d=#!\\", "é": "😀\n"}) == (
        "a\\ b=\\ c\\:d\\=\\#\\!\\\\\n\\u00E9=\\uD83D\\uDE00\\n\n"
    )


@given(st.dictionaries(st.text(), st.text(), max_size=5))
def test_what_is_written_is_read_back(values: dict[str, str]) -> None:
    assert decode_text(encode(values)) == values


@given(st.text(alphabet="ab\\u12 =:#!\n\r\t", max_size=40))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        found = decode_text(text)
    except ConfigError:
        return
    assert decode_text(encode(found)) == found
