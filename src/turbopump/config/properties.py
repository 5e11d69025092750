r"""Java `.properties` files, read and written like `java.util.Properties`, as `dict[str, str]`.

The grammar is Java's (comments, continuation lines, `\uXXXX`, three kinds of separator), because
`broker.conf` files are Java's. Source: the class documentation of `java.util.Properties.load` and
`store`. An unknown key never stops a server; the server logs it. The caller's table defines the
keys.
"""

import logging
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

from turbopump.config.keys import KeyClass, KeyTable, classify, is_default
from turbopump.errors import ConfigError

log = logging.getLogger("turbopump.config")

_BLANK = " \t\f"
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_WRITTEN_ESCAPES = {"\t": "\\t", "\n": "\\n", "\r": "\\r", "\f": "\\f", "\\": "\\\\"}
_MARKED = "=:#!"


def decode(data: bytes) -> dict[str, str]:
    r"""Return the keys and values of a properties file. The last value of a repeated key counts.

    Files that are valid UTF-8 are read as UTF-8, because people write UTF-8. Other files are read
    as ISO-8859-1, as Java reads all. Raise ConfigError for a malformed `\uXXXX`.
    """
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        text = data.decode("iso-8859-1")
    return decode_text(text.removeprefix("\ufeff"))


def decode_text(text: str) -> dict[str, str]:
    """Decode properties like `decode`, from text."""
    found: dict[str, str] = {}
    for _, entry in lines_of(text):
        if entry:
            raw_key, raw_value = _split(entry)
            found[_unescape(raw_key)] = _unescape(raw_value)
    return found


def encode(values: Mapping[str, str]) -> str:
    """Return text that `decode_text` and Java decode to `values`: ASCII, one `key=value` on each
    line, in the given order."""
    lines = (
        f"{_escape(key, blanks=True)}={_escape(value, blanks=False)}\n"
        for key, value in values.items()
    )
    return "".join(lines)


def lines_of(text: str) -> Iterator[tuple[list[str], str]]:
    """Yield the raw lines of each entry of a text, and the entry that they form together. The entry
    is empty for a comment or a blank line."""
    # Only \n, \r and \r\n end a line: str.splitlines knows many more.
    natural = iter(text.replace("\r\n", "\n").replace("\r", "\n").split("\n"))
    for first in natural:
        lines, line = [first], first.lstrip(_BLANK)
        if not line or line[0] in "#!":
            yield lines, ""
            continue
        while _continues(line):
            following = next(natural, None)
            lines += [] if following is None else [following]
            line = line[:-1] + (following or "").lstrip(_BLANK)
        yield lines, line


def key_of(entry: str) -> str:
    """Return the key of an entry from ``lines_of``."""
    return _unescape(_split(entry)[0])


def with_values(text: str, values: Mapping[str, str]) -> str:
    """Return the text of a properties file with new values for some keys. Comments, order and other
    entries stay; new keys are appended."""
    left = dict(values)
    lines: list[str] = []
    for natural, entry in lines_of(text):
        key = key_of(entry) if entry else None
        if key is None or key not in values:
            lines += natural
        elif key in left:  # drop a repeated key: its last line would count
            lines += encode({key: left.pop(key)}).splitlines()
    while lines and not lines[-1]:
        lines.pop()
    return "".join(f"{line}\n" for line in [*lines, *encode(left).splitlines()])


def _continues(line: str) -> bool:
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


def _split(line: str) -> tuple[str, str]:
    """Split a line into key and value. The key ends at the first unescaped blank, `=` or `:`.
    Blanks around that `=` or `:` belong to neither."""
    end = 0
    while end < len(line) and line[end] not in "=:" + _BLANK:
        end += 2 if line[end] == "\\" else 1
    rest = line[end:].lstrip(_BLANK)
    if rest and rest[0] in "=:":
        rest = rest[1:].lstrip(_BLANK)
    return line[:end], rest


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text
    out: list[str] = []
    at = 0
    while at < len(text):
        char = text[at]
        at += 1
        if char != "\\" or at == len(text):
            out.append(char if char != "\\" else "")
            continue
        char = text[at]
        at += 1
        if char == "u":
            out.append(_unicode_escape(text, at))
            at += 4
        else:
            out.append(_ESCAPES.get(char, char))
    joined = "".join(out)
    # Java writes characters beyond the first plane as two escaped surrogates: join them.
    return joined.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _unicode_escape(text: str, at: int) -> str:
    digits = text[at : at + 4]
    if len(digits) < 4 or any(digit not in "0123456789abcdefABCDEF" for digit in digits):
        raise ConfigError(f"malformed escape \\u{digits}: expected four hexadecimal digits")
    return chr(int(digits, 16))


def _escape(text: str, *, blanks: bool) -> str:
    out: list[str] = []
    for at, char in enumerate(text):
        if char == " ":
            out.append("\\ " if blanks or at == 0 else " ")
        elif char in _WRITTEN_ESCAPES:
            out.append(_WRITTEN_ESCAPES[char])
        elif char in _MARKED:
            out.append("\\" + char)
        elif " " <= char <= "~":
            out.append(char)
        else:
            units = char.encode("utf-16-be", "surrogatepass")
            out.extend(f"\\u{units[i]:02X}{units[i + 1]:02X}" for i in range(0, len(units), 2))
    return "".join(out)


_FILE_SIZE_MAX = 4 * 1024 * 1024
EVERYBODY = 0o007
"""Mode bits of a file for users who are neither its owner nor in its group."""


def read_properties(path: Path | str, known: KeyTable) -> dict[str, str]:
    """Return the keys and values of a properties file. Raise ConfigError if the file cannot be
    read.

    The log reports keys without effect, unknown keys, and secrets in a file that every user of the
    machine can read.
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
    """Log each unknown key of a file, and in one line the keys without effect that differ from
    Apache's default. Values are never logged, because they may be secrets."""
    idle = []
    for key, text in texts.items():
        found = classify(key, table)
        if found.key_class is KeyClass.UNKNOWN:
            nearest = f" nearest={found.nearest}" if found.nearest else ""
            log.warning("unknown key file=%s key=%s%s", path, key, nearest)
        elif found.key_class is KeyClass.ACCEPTED and not is_default(table[key], text.strip()):
            idle.append(key)
    if idle:
        log.warning(
            "keys without effect here have other values than Apache's defaults; see "
            "docs/reference/configuration.md file=%s keys=%s",
            path,
            ",".join(idle),
        )
