r"""Java `.properties` files, read and written like `java.util.Properties`, as `dict[str, str]`.

The grammar is Java's (comments, continuation lines, `\uXXXX`, three kinds of separator), because
`broker.conf` files are Java's. Source: the class documentation of `java.util.Properties.load` and
`store`. An unknown key never stops a server; the server logs it. The caller's table defines the
keys.
"""

import logging
import os
import re
import stat
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path

from turbopump.config.keys import KeyClass, KeyTable, classify, is_default
from turbopump.documentation import page_url
from turbopump.errors import ConfigError

log = logging.getLogger("turbopump.config")

_BLANK = " \t\f"
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_SEQUENCE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(u.{0,4})|(.?))", re.DOTALL)
"""An escape: a character's code, a malformed code, or one character. The last backslash of a text
stands for nothing."""
_WRITTEN_ESCAPES = {"\t": "\\t", "\n": "\\n", "\r": "\\r", "\f": "\\f"}
_ESCAPED_IN_KEYS = re.compile(r"[^!-~]|[=:#!\\]")
_ESCAPED_IN_VALUES = re.compile(r"\A |[^ -~]|[=:#!\\]")


def decode(data: bytes) -> dict[str, str]:
    r"""Return the keys and values of a properties file.

    The last value of a repeated key counts. Files that are valid UTF-8 are read as UTF-8, because
    people write UTF-8. Other files are read as ISO-8859-1, as Java reads all. Raise ConfigError for
    a malformed `\uXXXX`.
    """
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        text = data.decode("iso-8859-1")
    return decode_text(text.removeprefix("\ufeff"))


def decode_text(text: str) -> dict[str, str]:
    """Return the keys and values in the text of a properties file.

    The rules are those of `decode`.
    """
    found: dict[str, str] = {}
    for _, entry in lines_of(text):
        if entry:
            raw_key, raw_value = _split(entry)
            found[_unescape(raw_key)] = _unescape(raw_value)
    return found


def encode(values: Mapping[str, str]) -> str:
    """Return the text of a properties file with these keys and values.

    The text is ASCII, with one `key=value` on each line, in the given order. `decode_text` and Java
    decode it to `values`.
    """
    lines = (
        f"{_escape(key, blanks=True)}={_escape(value, blanks=False)}\n"
        for key, value in values.items()
    )
    return "".join(lines)


def lines_of(text: str) -> Iterator[tuple[list[str], str]]:
    """Split a properties file into entries. Yield the lines of each entry, and the joined entry.

    An entry may continue over several lines. The entry is empty for a comment or a blank line.
    """
    # Only \n, \r and \r\n end a line: str.splitlines knows many more.
    natural = iter(text.replace("\r\n", "\n").replace("\r", "\n").split("\n"))
    for first in natural:
        lines = [first]
        line = first.lstrip(_BLANK)
        if not line or line[0] in "#!":
            yield lines, ""
            continue
        while _continues(line):
            following = list(islice(natural, 1))
            lines += following
            line = line[:-1] + "".join(following).lstrip(_BLANK)
        yield lines, line


def key_of(entry: str) -> str:
    """Return the key of an entry from ``lines_of``."""
    return _unescape(_split(entry)[0])


def with_values(text: str, values: Mapping[str, str]) -> str:
    """Return the text of a properties file with new values for some keys.

    Comments, order and other entries stay as they are. New keys are appended.
    """
    left = dict(values)
    lines: list[str] = []
    for natural, entry in lines_of(text):
        key = key_of(entry)
        if not entry or key not in values:
            lines += natural
        elif key in left:  # drop a repeated key: its last line would count
            lines += encode({key: left.pop(key)}).splitlines()
    while lines and not lines[-1]:
        lines.pop()
    return "".join(f"{line}\n" for line in [*lines, *encode(left).splitlines()])


def _continues(line: str) -> bool:
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


def _split(line: str) -> tuple[str, str]:
    """Split a line of a properties file into key and value.

    The key ends at the first unescaped blank, `=` or `:`. Blanks around that `=` or `:` belong to
    neither.
    """
    end = 0
    while end < len(line) and line[end] not in "=:" + _BLANK:
        if line[end] == "\\":
            end += 1
        end += 1
    rest = line[end:].lstrip(_BLANK)
    if rest and rest[0] in "=:":
        rest = rest[1:].lstrip(_BLANK)
    return line[:end], rest


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text
    plain = _SEQUENCE.sub(_unescaped, text)
    # Java writes characters beyond the first plane as two escaped surrogates: join them.
    return plain.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _unescaped(sequence: re.Match[str]) -> str:
    code, malformed, char = sequence.groups()
    if code is not None:
        return chr(int(code, 16))
    if malformed is not None:
        raise ConfigError(f"malformed escape \\{malformed}: expected four hexadecimal digits")
    return _ESCAPES.get(char, char)


def _escape(text: str, *, blanks: bool) -> str:
    pattern = _ESCAPED_IN_VALUES
    if blanks:
        pattern = _ESCAPED_IN_KEYS
    return pattern.sub(_escaped, text)


def _escaped(found: re.Match[str]) -> str:
    char = found[0]
    if char in _WRITTEN_ESCAPES:
        return _WRITTEN_ESCAPES[char]
    if " " <= char <= "~":
        return f"\\{char}"
    units = char.encode("utf-16-be", "surrogatepass").hex().upper()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))


_FILE_SIZE_MAX = 4 * 1024 * 1024
EVERYBODY = 0o007
"""Mode bits of a file for users who are neither its owner nor in its group."""


def read_properties(path: Path | str, known: KeyTable) -> dict[str, str]:
    """Return the keys and values of a properties file.

    The log reports keys without effect, unknown keys, and secrets in a file that every user of the
    machine can read. Raise ConfigError if the file cannot be read.
    """
    try:
        with open(path, "rb") as file:
            data = file.read(_FILE_SIZE_MAX + 1)
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
    except OSError as error:
        raise ConfigError(
            f"the configuration file {path} cannot be read: {error.strerror}"
        ) from error
    if len(data) > _FILE_SIZE_MAX:
        raise ConfigError(
            f"the configuration file {path} is longer than {_FILE_SIZE_MAX} bytes: "
            "expected a properties file"
        )
    try:
        texts = decode(data)
    except ConfigError as error:
        raise ConfigError(f"the configuration file {path}: {error}") from None
    _report(path, texts, known)
    secrets = [key for key, text in texts.items() if key in known and known[key].secret and text]
    if secrets and mode & EVERYBODY:
        log.warning(
            "every user of this machine can get at the secrets in the configuration file, run "
            "chmod o-rwx file=%s mode=%04o keys=%s",
            path,
            mode,
            ",".join(secrets),
        )
    return texts


def _report(path: Path | str, texts: Mapping[str, str], table: KeyTable) -> None:
    """Log two kinds of keys in a file: unknown keys, and keys without effect.

    Each unknown key gets a line. The keys without effect that differ from Apache's default share
    one line. Values are never logged, because they may be secrets.
    """
    idle = []
    for key, text in texts.items():
        found = classify(key, table)
        if found.key_class is KeyClass.UNKNOWN:
            log.warning("unknown key file=%s key=%s nearest=%s", path, key, found.nearest or "-")
        elif found.key_class is KeyClass.ACCEPTED and not is_default(table[key], text.strip()):
            idle.append(key)
    if idle:
        log.warning(
            "keys without effect here have other values than Apache's defaults; see %s "
            "file=%s keys=%s",
            page_url("docs/reference/configuration.md"),
            path,
            ",".join(idle),
        )
