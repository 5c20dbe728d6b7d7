"""Makes texts safe to show: masks secrets (`masked`), and escapes control characters and invisible ones (`printable`).

`masked` recognises URLs with a login (`redis://:pw@host`, even percent-encoded inside the query of another URL), query
parameters and fields whose name says that they are secret (`?password=`, libpq's `password='...'`, `"secret": "..."`,
`X-Amz-Signature=`) and Authorization and Cookie headers. `printable` writes control characters (C0 except tab and line
end, DEL, C1), bidirectional overrides, characters without width and lone surrogates as escapes.
Never here: deciding what to show. Invariants: time is linear in the length of the text, the stack does not grow with
it, and masking or escaping a second time changes nothing.
Private: may change with any release.
"""

from __future__ import annotations

import re
import shlex
from typing import Final

MASK: Final = "***"
_PLACEHOLDERS: Final = ("USER:PASSWORD@", ":PASSWORD@")  # from onefold's advice on how to write a URL: not secrets
_URL_CHARS_MAX: Final = 2_048  # how much of one URL is examined; a longer one is masked from its login on
_NESTED_MAX: Final = 4  # levels of URLs in another's query that are examined; a deeper one is masked as a whole

_NAME_CHARS_MAX: Final = 60  # how many are examined before the sensitive word in a field's name
_NAME_CHARS: Final = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-"

# Patterns are compiled when they are first used (`re` keeps them), so that importing costs nothing. At each position a
# pattern examines a bounded number of characters.
_SENSITIVE: Final = (
    r"(?:pass(?:word|wd|phrase)|pwd|secret|token|api[-_]?key|(?:access|account)[-_]?key|private[-_]?key|signature|credential"
    r"|(?<![a-z0-9])(?:pass|pw|sig|auth)|(?-i:(?<=[a-z0-9])Pass(?![a-z])))"
)
_DATABASE: Final = r"(?:rediss?|postgres(?:ql)?|mysql|mongodb|amqps?)(?:\+\w{1,20})?"
_NO_PORT: Final = r"(?!\d{1,5}[.:]?(?:[\s/?,;'\")\]}>]|&\w{1,30}=|$))"
_HINT: Final = rf"(?i)@|:\\{{0,4}}/|//|cookie|%(?:25)?3a%(?:25)?2f%(?:25)?2f|identified by|\[parameters: |{_SENSITIVE}"
# A URL ends at white space, quotes of code or prose, or a bracket of <...>; a login before its `@` can contain quotes.
_URL: Final = r"(?i)(?<![a-z0-9+.-])([a-z][a-z0-9+.-]{1,30})(://)((?:[^\s@,]{1,256}@)?[^\s\"'<>`]+)"
# A password can even contain spaces, if what follows the colon is not a port.
_SPACED: Final = (
    r"(?i)(?<![a-z0-9+.-])([a-z][a-z0-9+.-]{1,30}://)"
    rf"(?!(?-i:USER)?:(?-i:PASSWORD)@)[^\s@/:'\"]{{0,128}}:(?!\s|//){_NO_PORT}[^@\n]{{0,128}}+@"
)
_SPACED_LONG: Final = (
    rf"(?i)\b({_DATABASE}://)(?!(?-i:USER)?:(?-i:PASSWORD)@)[^\s@/:'\"]{{0,128}}:"
    rf"(?:(?!\s|//){_NO_PORT}[^@\n]{{0,1024}}+|[ \t]{{1,4}}[^\s@]{{1,256}}+)@"
)
# URLs of databases with a typing error: `://` with missing, extra or wrong characters; a password and no host. Each
# pattern takes the rest of the word, so that no character is examined from many positions.
_SLIP: Final = (
    rf"(?i)\b({_DATABASE}(?::/(?!/)|:{{2,3}}/{{0,3}}|:(?:\\{{1,4}}/){{2}}|;?//|:\\{{1,4}}(?!/)|:(?=[^\s/@'\"]{{1,256}}[:@])))"
    r"([^\s'\"]*)"
)
_NO_HOST: Final = (
    rf"(?i)\b({_DATABASE}://(?!\[)[^\s@/:'\"]{{0,256}}:)(?!{re.escape(MASK)}|(?-i:PORT|port)[.:]?(?:[\s/?,;'\")\]}}>]|$)){_NO_PORT}"
    r"(?=[^\s'\"]*(@)|)[^\s'\"]+"
)
# A login without a scheme: after `//`, before a host and port, and where psycopg, http.client and botocore quote one.
_NO_SCHEME: Final = r"(?i)((?<!:)//|(?<![a-z0-9+.-])://)[^\s@/:'\"]{0,128}:([^\s'\"]*)"
_QUOTED_LOGIN: Final = r"(?i)(missing \\{0,4}\"=\\{0,4}\" after \\{0,4}\"|nonnumeric port: \\{0,4}')([^\s'\"]*)"
_WITH_PORT: Final = r"(?<![\w:/@.+-])([\w.+-]{1,64}:)([^\s@'\",/]{1,256}+)@(?=[\w.-]{1,255}:\d{2,5}\b)"
_ENCODED_URL: Final = r"(?i)(?<![a-z0-9+.-])[a-z][a-z0-9+.-]{1,30}%(?:25)?3a%(?:25)?2f%(?:25)?2f[^\s\"'<>`&]+"
# name=value and name: value, also quoted as in JSON and Python, ('name', 'value') and ['--name', 'value']. A match
# begins at the sensitive word; the part before it is examined only if one was found. Web forms number names or put
# them into brackets: password1=, user[password]=.
_AUTH: Final = r"(?:bearer|basic|token|digest|negotiate|apikey)"
_FIELD: Final = (
    rf"(?i)({_SENSITIVE}(?:s|[-_]?(?:key(?:_base)?|id|value|hash|string|confirmation))?\d{{0,3}}"
    r"(?:_{1,2}[a-z]?\d{1,4}){0,2})"  # SQLAlchemy's names of parameters: password_1, password_m0, password__1
    r"((?:\[\w{0,20}\])?\\{0,8}['\"]?(?:(?:\]|%5d)(?=[ \t]{0,4}=))?[ \t]{0,4}(?:=>?|:(?!//))[ \t]{0,4}|"
    r"(?:[ \t]{1,4}[\w:.-]{1,40}=(?:\"[^\"<>\n]{0,100}\"|'[^'<>\n]{0,100}')){0,5}>(?=[^\s<>=])|"
    r"\\{0,8}['\"],[ \t]{0,4}(?=b?\\{0,8}['\"]))"
    # Quotes that are escaped (a repr of a repr) or never close (a text that was cut): the rest of the line.
    r"((?:'''|\"\"\")(?s:.{0,2048}?(?:'''|\"\"\")|.{0,2048})|b?'(?:[^'\\\n]|\\{1,8}+.){0,2048}'|b?\"(?:[^\"\\\n]|\\{1,8}+.){0,2048}\""
    r"|b?\\{0,8}['\"].{1,8192}|\[[^\]\n]{1,2048}\]?|\{[^}\n]{1,2048}\}?|[\w.]{0,60}\([^)\n]{1,2048}\)?"
    rf"|(?:{_AUTH}[ \t]{{1,4}})?[^\s&,;)}}\]'\"]+)"
)
# The name in one field and the value in the next: environments of ECS and Kubernetes, CloudFormation parameters.
_PAIR: Final = (
    r"(?i)(\b(?:parameter)?(?:name|key)\\{0,8}['\"]?[ \t]{0,4}[:=][ \t]{0,4}\\{0,8}['\"]?"
    rf"[\w.-]{{0,60}}{_SENSITIVE}[\w.-]{{0,30}}"
    r"\\{0,8}['\"]?,?(?:\s|\\{1,4}[nrt]){0,40}\\{0,8}['\"]?(?:parameter)?value\\{0,8}['\"]?[ \t]{0,4}[:=][ \t]{0,4})"
    r"(?:'[^'\n]{0,2048}'?|\"[^\"\n]{0,2048}\"?|\\{1,8}['\"].{1,8192}|[^\s,;}\]'\"]+)"
)
# PostgreSQL's detail of a constraint, and SQL that sets a password.
_CONSTRAINT: Final = (
    rf"(?i)(\bkey \([^()\n]{{0,512}}?{_SENSITIVE}[^()\n]{{0,512}}\)=\()"
    r"(?:.{1,2048}?(?=\) (?:already|is|conflicts)\b)|.{1,8192})"
)
# SQLAlchemy's errors: the values of a statement, of which those in a tuple have no names.
_SQL_PARAMETERS: Final = r"(\[parameters: )[^\n]*"
_SQL_LOGIN: Final = r"(?i)\b((?:password|identified by)[ \t]{1,4})[en]?'[^'\n]{1,2048}'?"
# Names of errors that end in a sensitive word, as in "ExpiredToken: no".
_ERROR_NAME: Final = (
    r"(?:Bad|Denied|Duplicate|Expired|Incorrect|Invalid|Malformed|Missing|No|Partial|Rejected|Revoked|Unexpected|Unknown"
    r"|Unrecognized|Unsupported|Weak|Wrong)[A-Z]\w*"
)
_OPTION: Final = (
    rf"(?i)(?<![\w-])(--[a-z0-9-]{{0,40}}{_SENSITIVE}(?:-key|-id)?[ \t]{{1,4}})"
    r"(?!-)('[^'\n]{0,2048}'?|\"[^\"\n]{0,2048}\"?|\S+)"
)
# An authentication scheme and its values; Digest has several.
_HEADER: Final = (
    r"(?i)(authorization(?:['\"]?[ \t]{0,4}[:=]|['\"],)[ \t]{0,4}\[?(?:b?['\"])?)(?:[a-z][\w-]{0,20}[ \t]{1,4})?"
    r"(?:[^\s'\",]{0,256}=\"[^\"\n]{0,2048}\"|[^\s'\",]+)(?:,[ \t]{0,4}[\w-]{1,40}=(?:\"[^\"\n]{0,2048}\"|[^\s,'\"]+)){0,20}"
)
# All of a Cookie or Set-Cookie header, since the names of its parts do not show what is secret.
_COOKIE: Final = (
    r"(?i)(cookie(?:['\"]?[ \t]{0,4}[:=]|['\"],)[ \t]{0,4})"
    r"(b?'[^'\n]{0,8192}'?|b?\"[^\"\n]{0,8192}\"?|[^\s'\"][^\n\x1f'\"]{0,8192})"
)
_SCHEME: Final = r"[A-Za-z][A-Za-z0-9+.-]{0,30}"
# What follows `://` in a URL that can be parsed as a whole; a number could also be a password without its host.
_HOST: Final = (
    r"(?:[^\s/?#]{0,2048}@)?([A-Za-z0-9.-]{1,255}|\[[0-9A-Fa-f:.]{2,64}\])(?::[0-9]{1,5})?(?=[/?#]|$)(?![^?#]*@)"
)
_COLOUR: Final = r"(\x1b\[[0-9;]{0,40}m)"
_ESCAPED_CHAR: Final = "%([0-9a-fA-F]{2})"
_DATABASES: Final = frozenset(
    {
        "redis",
        "rediss",
        "postgres",
        "postgresql",
        "mysql",
        "mongodb",
        "amqp",
        "amqps",
        "unix",
        "mariadb",
        "mssql",
        "sqlserver",
        "oracle",
        "cockroachdb",
        "clickhouse",
        "snowflake",
        "redshift",
        "db2",
        "cassandra",
        "nats",
        "mqtt",
        "mqtts",
        "ldap",
        "ldaps",
    }
)
# Bidirectional marks, embeddings, overrides and isolates (Unicode standard annex 9); line and paragraph separators;
# characters without width (Unicode's Default_Ignorable_Code_Point), with which two keys would look the same.
_UNSAFE: Final = (
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f"
    "\u3164\ud800-\udfff\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)


def masked(text: str) -> str:
    """The text with `***` in place of each password, token and signature."""
    return _masked(text, _NESTED_MAX)


def shown_url(url: str) -> str:
    """A URL as an error quotes it: all of it if it has no place for a login, otherwise only its scheme and host.

    A typing error can put the password anywhere, so only the scheme is shown of a URL that cannot be parsed.
    """
    scheme, separator, rest = url.partition("://")
    if re.fullmatch(_SCHEME, scheme) is None if separator else ":" in url or "@" in url:
        return "The URL (not shown: it may hold a password)"
    if scheme.lower() in ("sqlite", "memory") or not separator:
        return repr(masked(url))
    if "@" not in rest and not re.search("[:%=]", rest):
        return repr(url)
    host = re.match(_HOST, rest)
    return repr(f"{scheme}://{host[1] if host else ''}...")


def database_of(url: str) -> str:
    """A URL that has opened a database, without its login and options: what says which database it is.

    Where the text is not plainly one, as `shown_url`.
    """
    parts = re.fullmatch(
        r"([a-z+]{1,20}://)(?:[^@/?#]{0,500}@)?([\w.-]{0,300}(?::\d{1,5})?/[\w./-]{0,300})(?:\?.*)?", url
    )
    return shown_url(url).strip("'") if parts is None else parts[1] + parts[2]


def _masked(text: str, levels: int) -> str:
    if re.search(_HINT, text) is None:
        return text
    text = re.sub(_SPACED_LONG, rf"\1{MASK}@", re.sub(_SPACED, rf"\1{MASK}@", text))
    for pattern in (_SLIP, _NO_SCHEME, _QUOTED_LOGIN):
        text = re.sub(pattern, _masked_login, text)
    text = re.sub(_WITH_PORT, rf"\1{MASK}@", text)
    text = re.sub(_NO_HOST, lambda found: found[0] if found[2] else found[1] + MASK, text)
    if "%" in text:
        text = re.sub(_ENCODED_URL, lambda found: _masked_inside(found[0], levels), text)
    text = re.sub(_URL, lambda found: _masked_url(found, levels), text)
    text = re.sub(_COOKIE, _masked_cookie, re.sub(_OPTION, rf"\1{MASK}", re.sub(_HEADER, rf"\1{MASK}", text)))
    text = re.sub(_SQL_PARAMETERS, rf"\1{MASK}]", text)
    for pattern in (_PAIR, _CONSTRAINT, _SQL_LOGIN):
        text = re.sub(pattern, rf"\1{MASK}", text)
    return re.sub(_FIELD, _masked_field, text)


def _masked_login(found: re.Match[str]) -> str:
    """A word with everything before its last `@` masked."""
    _, sign, host = found[2].rpartition("@")
    return f"{found[1]}{MASK}@{host}" if sign else found[0]


def _masked_url(found: re.Match[str], levels: int) -> str:
    scheme, sign, rest = found.groups()
    tail = ""
    if len(rest) > _URL_CHARS_MAX:
        rest, tail = rest[:_URL_CHARS_MAX], MASK
    rest, question, query = rest.partition("?")
    at = _end_of_login(scheme.lower(), rest)
    if not at and "@" in query and ":" in rest:  # a question mark in the password
        before, _, host = query.rpartition("@")
        if not rest.partition("/")[0].rpartition(":")[2].isdigit() and "=" not in before:
            return f"{scheme}{sign}{MASK}@{host}{tail}"
    if at:
        rest = f"{MASK}@{rest[at:]}"
    if question:
        query = "&".join(_masked_parameter(one, levels) for one in query.split("&"))
    return f"{scheme}{sign}{rest}{question}{query}{tail}"


def _end_of_login(scheme: str, rest: str) -> int:
    """Where the host begins; 0 if there is no login.

    A password with a slash should be percent-encoded and often is not, so the last `@` counts if the part before the
    slash cannot be a host and its port.
    """
    if "://" in rest and "@" in rest:  # a list of URLs, or another one in the path: only the last host is kept
        return rest.rindex("@") + 1
    if rest.startswith(_PLACEHOLDERS) and rest.count("@") == 1:
        return 0
    authority = rest.partition("/")[0]
    is_database = "+" in scheme or scheme in _DATABASES  # the driver follows the plus
    if "@" in authority and not is_database:
        return authority.rindex("@") + 1
    port = authority.rpartition(":")[2]
    if "@" in rest and (is_database or (":" in authority and not port.isdigit())):
        return rest.rindex("@") + 1
    return 0


def _masked_parameter(parameter: str, levels: int) -> str:
    name, equals, value = parameter.partition("=")
    if not equals:  # https://proxy.example/?http://user:password@host
        return _masked_inside(name, levels)
    if not value:
        return f"{_masked_inside(name, levels)}="
    if re.search(f"(?i){_SENSITIVE}", name):
        return f"{_masked_inside(name, levels)}={MASK}"
    return f"{_masked_inside(name, levels)}={_masked_inside(value, levels)}"


def _masked_inside(text: str, levels: int) -> str:
    """A part of a query: unchanged, or decoded and masked if it holds a secret."""
    if "%" not in text and "://" not in text:
        return text
    plain = _unescaped(_unescaped(text)) if "%" in text else text
    if re.search(_HINT, plain) is None:
        return text
    hidden = _masked(plain, levels - 1) if levels else MASK
    return hidden if hidden != plain else text


def _unescaped(text: str) -> str:
    return re.sub(_ESCAPED_CHAR, lambda found: chr(int(found[1], 16)), text)


def _masked_cookie(found: re.Match[str]) -> str:
    sign = found[2].lstrip("b")[0]
    return f"{found[1]}{sign}{MASK}{sign}" if sign in "'\"" else f"{found[1]}{MASK}"


def _masked_field(found: re.Match[str]) -> str:
    name, between, value = found.groups()
    before = found.string[max(found.start() - _NAME_CHARS_MAX, 0) : found.start()]
    first = before.rstrip(_NAME_CHARS)
    whole = before[len(first) :] + name
    if between[0] == ":" and value[0] not in "'\"" and re.fullmatch(_ERROR_NAME, whole):
        return found[0]
    if "," in between and not whole.startswith("--") and not first.endswith(("('", '("', "(b'", '(b"')):
        return found[0]  # words of a list, not a name and its value
    if name[-1] in "sS" and value.isdecimal():
        return found[0]  # tokens=3
    if value.lstrip("b")[:1] in ("'", '"', "\\"):
        sign = value[-1] if value[-1] in "'\"" else ""
        return f"{name}{between}{sign}{MASK}{sign}"
    return f"{name}{between}{MASK}" if not value.startswith(MASK) else found[0]


def is_plain(text: str) -> bool:
    """Whether each character of a text is visible and has no other effect."""
    return text.isprintable() and (text.isascii() or re.search(_UNSAFE, text) is None)


def from_first_visible(text: str) -> str:
    """The text without the white space and the invisible characters that it begins with, such as a byte order mark."""
    found = re.match(rf"(?:\s|{_UNSAFE})*+", text)
    return text[found.end() :] if found is not None else text


def printable(text: str, *, colours: bool = False) -> str:
    r"""The text with escapes (`\x1b`, `\x9b`, `\u202e`) for characters that would deceive a terminal or a reader.

    Tabs and line ends stay.

    Args:
        colours: sequences that set colours and weight (`ESC [ numbers m`) stay too; for logs of the user's own functions.
    """
    if is_plain(text):
        return text
    if colours:
        parts = re.split(_COLOUR, text)  # every second part is a colour
        return "".join(part if index % 2 else printable(part) for index, part in enumerate(parts))
    return re.sub(_UNSAFE, _escape, text)


def one_line(text: str) -> str:
    r"""Like `printable`, with line ends as `\n`, so that a name inside a sentence does not begin a new line."""
    return printable(text).replace("\n", "\\n")


def shell_word(text: str) -> str:
    r"""A text as one word of a shell command, readable and ready to paste: `o-17`, `'o 17'`, `$'\u202egnp.exe'`."""
    if is_plain(text):
        return shlex.quote(text)
    escaped = text.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n").replace("\t", "\\t")
    return f"$'{printable(escaped)}'"


def command(words: str, name: str, options: str = "") -> str:
    """A command about a key, not mistaken for an option: `onefold why o-17 --json`, `onefold why --json -- --o-17`."""
    word = shell_word(name)
    gap = " " if options else ""
    if name.startswith("-"):
        return f"{words}{gap}{options} -- {word}"
    return f"{words} {word}{gap}{options}"


def printable_json(text: str) -> str:
    r"""A JSON text with these characters written as JSON's own escapes, so that it decodes to the same value."""
    if is_plain(text):
        return text
    return text.translate(_JsonEscapes())


def _escape(found: re.Match[str]) -> str:
    code = ord(found[0])
    if code >= 0x10000:
        return f"\\U{code:08x}"
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


class _JsonEscapes(dict[int, str]):
    """A table for `str.translate`, computed for each character that occurs."""

    def __missing__(self, code: int) -> str:
        self[code] = chr(code)
        if re.match(_UNSAFE, chr(code)):
            halves = [code] if code < 0x10000 else [0xD800 + (code - 0x10000 >> 10), 0xDC00 + (code - 0x10000 & 0x3FF)]
            self[code] = "".join(f"\\u{half:04x}" for half in halves)
        return self[code]
