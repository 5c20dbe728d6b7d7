"""What may be shown: no secret in any message, no character that a terminal or an eye would obey.

The forms are those in which a password was printed when this was attacked; each passes through every way out.
"""

from __future__ import annotations

import ast
import io
import json
import logging
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import onefold
from onefold import errors, redact
from onefold.cli import main, render
from onefold.cli.commands import lambda_, serve, worker
from onefold.clock import SystemClock
from onefold.contracts.store import RecordKey
from onefold.engines.urls import open_engine, open_store
from onefold.entropy import SystemEntropy
from onefold.local.outcomes import LogLine
from onefold.observe.sinks import LogSink
from onefold.record.error_text import summary_of
from onefold.runtime.events import Event

PW = "s3cr3t"
FORMS = [
    f"redis://:{PW}@localhost:6379/0",
    f"redis://user:{PW}@h/0",
    f"rediss://user:{PW}@h/0",
    f"postgresql://u:{PW}@h/db",
    f"postgresql+psycopg://u:{PW}@h/db",
    f"postgresql://u@h/db?password={PW}",
    f"postgresql://u@h/db?sslpassword={PW}&sslmode=require",
    f"postgresql://u:{PW}@h1,u:{PW}@h2/db",
    f"postgresql://u:a/{PW}@h/db",
    f"postgresql://u:a?{PW}@h/db",
    f"postgresql://u:a#{PW}@h/db",
    f"redis://:a@{PW}@h",
    f"redis://:p%40{PW}@h",
    f"redis://u:'{PW}@h",
    f"redis://u:p w{PW}@h",
    f"host=h user=u password={PW} dbname=x",
    f"host=h password='{PW} a\\'b {PW}' dbname=x",
    f"password = {PW}",
    f"PGPASSWORD={PW}",
    f"invalid token: Bearer {PW}",
    f"X-Auth-Token: Digest {PW}",
    f"get('https://h/', auth=('u', '{PW}')) failed",
    f"auth=HTTPBasicAuth('u', '{PW}')",
    f"credentials=requests.auth.Basic('u', '{PW}",
    f"ALTER ROLE x WITH PASSWORD E'{PW}'",
    f"password='''a\n{PW}'''",
    f"mssql+pyodbc://u:p@ss/{PW}@h/db",
    f"sqlserver://u:p@ss/{PW}@h/db",
    f"oracle+oracledb://u:a/{PW}@h/db",
    f"unix://:{PW}@/tmp/redis.sock",
    f"unix:///tmp/redis.sock?password={PW}",
    f"aws://eu-west-1?table=x&records=redis://:{PW}@h/0",
    f"aws://eu-west-1?table=x&records=redis%3A%2F%2F%3A{PW}%40host%2F0",
    f"aws://eu-west-1?records=redis%253A%252F%252F%253A{PW}%2540host",
    f"records=redis%3A%2F%2F%3A{PW}%40h",
    f"redis%253A%252F%252F%253A{PW}%2540h",
    f"https://proxy.example/http%3A%2F%2Fu%3A{PW}%40h?x=1",
    f"https://proxy.example/http://u:{PW}@h",
    f"https://proxy.example/?http://u:{PW}@h",
    f"https://proxy.example/?http://u:{PW}@h/x=y",
    f"http://u:{PW}@h1:9200,http://u:{PW}@h2:9200",
    f"http://h1:9200;http://u:{PW}@h2:9200",
    "http://a?next=" * 290 + f"http://u:{PW}@h",
    f"{{'password': '{PW}'}}",
    f'{{"password": "{PW}"}}',
    f"https://{PW}@example.com/x",
    f"https://q.example.com/?X-Amz-Signature={PW}&b=c",
    f"Authorization: Bearer {PW}",
    f"aws_secret_access_key={PW}",
    f"ONEFOLD_SECRET_KEY={PW}",
    f"SECRET_KEY='{PW}'",
    f"secret_key: {PW}",
    f"credentials={PW}",
    f"x_secret_id={PW}",
    f"tokens=['{PW}', '{PW}']",
    f"{'x' * 90}_password={PW}",
    f"Authorization: Token {PW}",
    f"Authorization: ApiKey {PW}",
    f"Authorization: Digest username=x, response={PW}",
    f'Authorization: Digest username="x y", realm="a", response="{PW}", qop=auth',
    f"{{'Authorization': b'Bearer {PW}'}}",
    f"[('Authorization', 'Bearer {PW}'), ('x-api-key', '{PW}')]",
    f"(b'x-api-key', b'{PW}')",
    f"{{'password': b'{PW}'}}",
    f'{{\\"password\\": \\"{PW}\\"}}',
    f"password='''{PW}'''",
    f"http://u:a b{PW}@h",
    f"--password {PW}",
    f"--secret-key '{PW} {PW}'",
    f"redis:/:{PW}@127.0.0.1:1",
    f"redis//:{PW}@h",
    f"redis:://:{PW}@h",
    f"redis://:{PW}",
    f"redis://u:{PW}",
    f"postgresql://u:{PW}/db",
    f"redis://u:{'a' * 300}{PW}",
    f"redis://:{'a' * 300}{PW}",
    f"postgres:/u:{'a' * 300}{PW}@h",
    f"postgresql://u:{'a' * 300} {PW}@h",
    f"postgresql://u: {PW}@h/db",
    f"redis:u:{PW}@h",
    f"redis:{PW}@h",
    f"redis;//u:{PW}@h",
    f"redis:\\u:{PW}@h",
    f"//u:{PW}@h",
    f"://u:{PW}@h",
    f"Invalid endpoint: http//u:{PW}@h",
    f"u:{PW}@h:6379",
    f'missing "=" after "u:{PW}@h/db" in connection info string',
    f"nonnumeric port: '{PW}@h'",
    f"Cookie: session={PW}; theme=dark",
    f"{{'Set-Cookie': 'sid={PW}; Path=/', 'a': 1}}",
    f"[('cookie', b'sid={PW}')]",
    f"Password: {PW}",
    f"Username: u Password: {PW}",
    f"accessToken: {PW}",
    f"{{ user: 'u', accessToken: '{PW}' }}",
    f"ApiKey: {PW}",
    f"InvalidToken: '{PW}'",
    f"AccessKeyId: A SecretAccessKey: {PW}",
    f"Command '['psql', '--password', '{PW}']' returned non-zero exit status 1.",
    f"['--token', '{PW}', 'x']",
    f'["--api-key", "{PW}"]',
    f'[\\"--api-key\\", \\"{PW}\\"]',
    f"[b'--password', b'{PW}']",
    f"password1={PW}&password2={PW}",
    f'{{"password1":"{PW}"}}',
    f"user[password]={PW}",
    f"user%5Bpassword%5D={PW}",
    f"password[0]={PW}",
    f"os.environ['DB_PASSWORD'] = '{PW}'",
    f'{{"name":"password","value":"{PW}"}}',
    f"{{'Name': 'DB_PASSWORD', 'Value': '{PW}'}}",
    f"ParameterKey=DbPassword,ParameterValue={PW}",
    f"- name: DB_PASSWORD\n  value: {PW}",
    f"Key (api_token)=({PW}) already exists.",
    f"Key (owner, api_token)=(1, {PW}(x) is not present in table",
    f"Key (api_token)=({PW}",
    f"ALTER USER u PASSWORD '{PW}'",
    f"CREATE USER u IDENTIFIED BY '{PW}'",
    f"redis://host:port-{PW}",
    f"redis://host:PORT-{PW}",
    f"could not connect to postgresql://u:{PW}@h/db: no route; tried redis://:{PW}@q too",
]


@pytest.mark.parametrize("form", FORMS)
def test_no_form_of_a_password_passes_a_way_out(form: str, capsys: pytest.CaptureFixture[str]) -> None:
    said = [redact.masked(form), redact.masked(f"It was {form!r}, and ({form})."), summary_of(RuntimeError(form))]
    error = errors.UsageError(f"{form!r} is wrong.", meaning=f"It is {form}.", todo=f"Change {form}.")
    said += [str(error), repr(error), error.what, error.meaning, error.todo]
    main._say(error, True, error)
    render.line(f"engine {form}")
    render.note(f"engine {form}")
    render.draw(render.table([render.Column("url", folds=True)], [[form]]))
    captured = capsys.readouterr()
    said += [captured.out, captured.err]
    assert not [text for text in said if PW in "".join(text.split())]


@pytest.mark.parametrize("form", FORMS)
def test_masking_twice_changes_nothing(form: str) -> None:
    once = redact.masked(form)
    assert redact.masked(once) == once
    assert redact.MASK in once


@pytest.mark.parametrize(
    "text",
    [
        "aws://us-east-1?sqs=http://127.0.0.1:9324&create=yes&records=postgresql://localhost/shop",
        "sqlite:///shop.db", "http://127.0.0.1:9324/000000000000/orders", "https://a.example/b?x=1&y=2", "onefold.key=abc",
        "tokens=3 monkey: x", "compass: x Passed: y", "parameters: (1)", "author=x compass=1 keypad=2 design=3 sigma: 4", "https://api.example/users/bob@example.com",
        "ExpiredToken: no", "redis://h:6379/0 as bob@example.com", "https://a.example/http://b.example/c",
        "redis://:6379/0", "['token', 'password']", "('a', 'token')", "https://a.example: write to bob@example.com",
        "max_tokens=5", "http://h:8080/x for bob@example.com", "--token-file x", "a?b=http://c/d%20e&f=g%2Fh",
        "arn:aws:sqs:eu-west-1:000000000000:orders", "welcome:bob@example.com", "mailto:bob@example.com", "redis://h:6379.",
        "redis://h:6379: refused", "redis://[::1]:6379/0", "postgresql://h1:5432,h2:5433/db", "redis://HOST:PORT/0",
        "12:30 bob@example.com: no", "redis://host:port?cluster=yes", "redis://host:port/db?prefix=...",
        "InvalidToken: no padding", "InvalidAccessKeyId: it is not known", "Key (email)=(a) already exists.",
        "('--tokens', )", "['--a', 'token', 'x']", "git@example.com:shop/app", "a//b c@d", "see //example.com/a:b",
    ],
)  # fmt: skip
def test_what_holds_no_secret_stays_as_it_is(text: str) -> None:
    assert redact.masked(text) == text


def test_a_url_whose_query_has_urls_is_shown_without_their_logins() -> None:
    url = "aws://us-east-1?sqs=http://127.0.0.1:9324&create=yes&records=postgresql://worker@localhost/shop"
    assert redact.masked(url) == url.replace("worker@", "***@")


@pytest.mark.parametrize("login", ["USER:PASSWORD", ":PASSWORD"])
@pytest.mark.parametrize("scheme", ["redis", "postgresql", "https"])
def test_advice_on_how_to_write_a_url_can_be_read(scheme: str, login: str) -> None:
    advice = f"Write {scheme}://{login}@host:5432/db, with % codes for characters like @ and /."
    assert redact.masked(advice) == advice
    assert errors.UsageError("no", todo=advice).todo == advice
    for secret in (f"{scheme}://{login}@{PW}@host/db", f"{scheme}://{login}{PW}@host", f"{scheme}://user:{PW}@host"):
        assert PW not in redact.masked(secret)


@pytest.mark.parametrize(
    "text",
    [
        "dbPass=%s", "smtpPass: %s", "secret_key_base: %s", '<Password type="s" x=\'1\'>%s</Password>',
        "{'password_1': '%s'}", "{'password_m0': '%s'}", "{'token__1': '%s'}", "[{'password_1_1': '%s'}]",
        "[SQL: INSERT INTO t VALUES (?, ?)]\n[parameters: (1, '%s')]\n(Background on this error)",
        "[parameters: [(1, 'x'), (2, '%s')]  ... displaying 10 of 99 total bound parameter sets ...]",
        '{"Authorization": ["Bearer %s"]}', '{"password": {"value": "%s"}}', '{"credentials": {"user": "a", "value": "%s"}}',
        '"password"=>"%s"', ':password => "%s"', "<password>%s</password>", '{"passwordHash": "%s"}',
        '{"SecretString": "%s"}',
        '{"password_confirmation": "%s"}', r"redis:\/\/:%s@h", "AccountName=x;AccountKey=%s==;",
        '{"token": "' + "a" * 2_100 + '%s"}', "Cookie: s=" + "a" * 4_100 + "%s",
    ],
)  # fmt: skip
def test_other_forms_of_a_field(text: str) -> None:
    hidden = redact.masked(text % PW)
    assert PW not in hidden
    assert redact.masked(hidden) == hidden


SLIPS = (
    f"redis://u:{PW}", f"postgres://u:{PW}", f"postgresql://u:{PW}/db", f"redis://h:{PW}/0", f"postgresql://u: {PW}@h/db",
    f"redis:u:{PW}@h", f"postgresql:u:{PW}@h/db", f"redis:{PW}@h", f"u:{PW}@h:6379", f"//u:{PW}@h", f"://u:{PW}@h",
    f"redis;//u:{PW}@h", f"redis:\\u:{PW}@h", f"redis://u:{PW}\uff20h",
)  # fmt: skip


@pytest.mark.parametrize(
    "url",
    [
        f"redis://:a/{PW}@h/0", f"redis://:{PW}/x@h/0", f"redis://h:{PW}/0", f"redis://h/0?password={PW}",
        f"redis://[{PW}/0", f"postgresql://u:a/{PW}@h/db", f"postgresql://u:%zz{PW}@h/db", f"postgresql://u:a@{PW}@h/db",
        f"postgresql://u:p@h:{PW}/db", f"mysql://u:{PW}@h/db", f"aws://eu-west-1?records=mysql%3A%2F%2Fu%3A{PW}%40h",
        f"redis+tls://:{PW}@h", f"postgresql://u:{PW}@h/db?schema=A;B", f"redis:/:{PW}@127.0.0.1:1", f"redis//:{PW}@h",
        f"redis:://:{PW}@h", f"redis://:{PW}", *SLIPS,
        *(f"aws://eu-west-1?records={slip}" for slip in SLIPS if " " not in slip),
        *(f"aws://eu-west-1?endpoint={slip}" for slip in SLIPS), f"redis://h/0?x={PW}",
    ],
)  # fmt: skip
def test_a_url_that_is_refused_does_not_print_its_password(url: str) -> None:
    with pytest.raises(errors.OnefoldError) as caught:
        open_store(url, clock=SystemClock(), entropy=SystemEntropy())
    seen: BaseException | None = caught.value
    while seen is not None:
        assert PW not in str(seen)
        seen = seen.__cause__ or (None if seen.__suppress_context__ else seen.__context__)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        (f"postgresql://owner:{PW}@localhost:5432/shop?sslmode=require", "postgresql://localhost:5432/shop"),
        ("postgresql://postgres@localhost/shop", "postgresql://localhost/shop"),
        ("dynamodb://eu-west-1/outbox", "dynamodb://eu-west-1/outbox"),
        ("sqlite:////var/shop/shop.db", "sqlite:////var/shop/shop.db"),
    ],
)
def test_a_database_is_named_without_its_login(url: str, shown: str) -> None:
    assert redact.database_of(url) == shown


@pytest.mark.parametrize(
    "url", [f"postgresql://u:{PW}/db", f"postgresql://u:a/{PW}@h/db", f"postgresql://u:a@{PW}@h/db", *SLIPS]
)
def test_a_slip_in_a_url_shows_no_password_as_a_database(url: str) -> None:
    assert PW not in redact.database_of(url)


@pytest.mark.parametrize("url", SLIPS)
def test_an_app_whose_url_cannot_be_read_does_not_print_it(url: str) -> None:
    with pytest.raises(errors.OnefoldError) as caught:
        open_engine(url, clock=SystemClock(), entropy=SystemEntropy(), owner="o")
    assert PW not in str(caught.value)


# --------------------------------------------------------------------------------------------------------- characters

UNSAFE = "\x1b]0;title\x07 \x9b31m \x85 \u202e \u2066 \u200f \x7f \u2028 \ud800"
BIDI = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u200e\u200f\u061c\u2028\u2029"
WITHOUT_WIDTH = (
    "\u00ad\u034f\u115f\u1160\u17b4\u180b\u180e\u200b\u200d\u2060"
    "\u3164\ufe00\ufe0f\ufeff\uffa0\U0001d173\U000e0041\U000e0100\U000e01ef"
)
BARRED = {*map(chr, range(0x09)), *map(chr, range(0x0B, 0x20)), *map(chr, range(0x7F, 0xA0)), *BIDI, *WITHOUT_WIDTH}


def barred_in(text: str) -> set[str]:
    return set(text) & BARRED


@given(st.text(max_size=60) | st.text(BIDI + WITHOUT_WIDTH, max_size=9))
def test_no_text_keeps_a_character_that_is_obeyed(text: str) -> None:
    assert not barred_in(redact.printable(text))
    assert redact.printable(redact.printable(text)) == redact.printable(text)
    plain = text.encode("utf-8", "replace").decode()
    shown = redact.printable_json(msgspec.json.encode({"text": plain}).decode())
    assert not barred_in(shown)
    assert json.loads(shown) == {"text": plain}


def test_nothing_drawn_reaches_a_terminal_as_a_control(capsys: pytest.CaptureFixture[str]) -> None:
    from rich.text import Text

    render.line(UNSAFE)
    render.note(UNSAFE)
    render.draw(Text(UNSAFE, style="bold"), render.table([render.Column("key")], [[UNSAFE], ["[red]as it is[/red]"]]))
    error = errors.UsageError(UNSAFE)
    main._say(error, True, error)
    captured = capsys.readouterr()
    assert not barred_in(captured.out + captured.err)
    assert "[red]as it is[/red]" in captured.out
    assert r"\x9b31m" in captured.out


def test_log_lines_escape_them_too() -> None:
    for form in ("json", "plain"):
        stream = io.StringIO()
        logger = logging.getLogger(f"test-redaction-{form}")
        logger.propagate = False
        handler = logging.StreamHandler(stream)
        logger.handlers = [handler]
        logger.setLevel(1)
        event = Event(
            name="dead-letter",
            at_ms=0,
            key=RecordKey("", "job", "k\u202e"),
            detail={"summary": UNSAFE.replace("\ud800", "")},
        )
        LogSink(logger, form=form).emit(event)  # type: ignore[arg-type]
        assert stream.getvalue().strip()
        assert not barred_in(stream.getvalue())


def test_colours_of_a_functions_own_log_stay_and_nothing_else() -> None:
    text = "\x1b[1;31mred\x1b[0m \x1b]0;title\x07 \x1b[2J \x9b2J"
    assert redact.printable(text, colours=True) == "\x1b[1;31mred\x1b[0m \\x1b]0;title\\x07 \\x1b[2J \\x9b2J"


def test_nor_do_the_logs_of_local_functions_where_no_terminal_is() -> None:
    line = LogLine("h", "12345678-1", "stdout", f"\x1b[31mred {UNSAFE}")
    said: list[str] = []
    lambda_._log_writer("text", said.append)(line)
    for text in (serve._shown(line), *said):
        assert not barred_in(text)
        assert "red" in text
        assert "[31m" not in text, "colours are taken off"


def test_a_command_prints_json_without_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = main.run(["queue", "list", "--url", f"sqlite:///{tmp_path}/a.db\u202e", "--json"])
    captured = capsys.readouterr()
    assert code in (0, 1, 2)
    assert not barred_in(captured.out + captured.err)


@pytest.mark.parametrize("key", ["pre-auth", "token", "p-password", "api_key", "authorization", "cookie"])
def test_a_key_that_ends_as_a_secrets_name_does_masks_nothing_behind_it(
    key: str, capsys: pytest.CaptureFixture[str]
) -> None:
    detail = {"error": "HTTPError", "summary": f"401 key rotated, token={PW}"}
    operation = RecordKey("", "charge", key)
    for name in ("dead-letter", "dependency-down"):
        worker.Failures("app shop").emit(Event(at_ms=1, name=name, key=operation, message_id="m-1", detail=detail))
    trouble = {"schedule": key, "why": "401 key rotated", "in": key}
    worker.Trouble().emit(Event(at_ms=1, name="ticks-orphaned", key=operation, detail=trouble))
    render.line(render.joined("  2  ", render.cause("InvalidToken", "no padding")))
    said = capsys.readouterr()
    assert said.err.count(f"charge {key}: HTTPError: 401 key rotated, token=***\n") == 2
    assert f"charge {key}: {key}: 401 key rotated: {key}\n" in said.err
    assert said.out == "  2  InvalidToken: no padding\n"
    assert PW not in said.err


def _said(text: ast.expr) -> str:
    if isinstance(text, ast.Constant):
        return str(text.value)
    if isinstance(text, ast.JoinedStr):
        return "".join(_said(one) if isinstance(one, ast.Constant) else "VALUE" for one in text.values)
    return ""


def test_no_error_of_ours_is_masked_in_what_it_says_itself() -> None:
    """`Authorization: Bearer TOKEN` and `Give token= (16 characters)` came out as `Authorization: ***` and `token= ***`."""
    folder = Path(onefold.__file__).parent
    seen, hit = 0, []
    for file in folder.rglob("*.py"):
        if file.is_relative_to(folder / "local"):
            continue  # answers of the local server, which are not masked
        for call in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            named = {one.arg: one.value for one in call.keywords} if isinstance(call, ast.Call) else {}
            if isinstance(call, ast.Call) and {"todo", "meaning"} & set(named):
                texts = [_said(one) for one in (*call.args, *named.values())]
                seen += len(texts)
                hit += [f"{file.name}:{call.lineno}: {one}" for one in texts if redact.masked(one) != one]
    assert seen > 1_000
    assert hit == []
