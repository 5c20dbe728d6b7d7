"""`onefold serve`: a local SQS for any AWS SDK, until stopped.

Prints where it listens, how to point a client at it, and where messages are kept; with --json one line once it answers.
Never here: how it is built (`local/serving.py`), what it answers (`local/`).
Invariant: nothing is printed as running before the first request can come.
"""

from __future__ import annotations

import click

from onefold import redact
from onefold.cli import options, render
from onefold.cli.program import Answer, declared
from onefold.clock import SystemClock
from onefold.entropy import SystemEntropy
from onefold.errors import UsageError
from onefold.local import outcomes as log_output
from onefold.local import serving
from onefold.local.fault_rules import parse_faults
from onefold.local.outcomes import LogLine
from onefold.local.request_handler import is_loopback
from onefold.local.serving import ServeSettings, Serving


@declared(
    "serve",
    example="onefold serve\nonefold serve --memory --port 0 --json\n"
    "onefold serve template.yaml --fault lose-ack=10%,queue=orders*",
)
@click.argument("template", required=False, metavar="[TEMPLATE]")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on; 0.0.0.0 for all.")
@click.option(
    "--port", type=options.WholeType(0, 65_535), default=serving.PORT, show_default=True, help="0 takes a free one."
)
@click.option("--data", metavar="FILE", help=f"Keep the queues in this file.  [default: {serving.DATA}]")
@click.option("--memory", is_flag=True, help="Keep the queues in memory; they end with the server.")
@click.option("--account", default=serving.ACCOUNT, show_default=True, help="Account id in URLs and ARNs.")
@click.option("--region", default=serving.REGION, show_default=True, help="Region of unsigned requests.")
@click.option("--access-key", metavar="ID", help="Accept only requests signed with this key.")
@click.option(
    "--secret-key", metavar="SECRET", help="Its secret; ONEFOLD_SECRET_KEY is safer.", envvar="ONEFOLD_SECRET_KEY"
)
@click.option(
    "--admin-token",
    metavar="TOKEN",
    envvar="ONEFOLD_ADMIN_TOKEN",
    help="Require it under /_onefold; needed there if --host admits other machines.",
)
@click.option("--no-recreate-wait", is_flag=True, help="A deleted queue's name is free at once, not after 60 s.")
@click.option("--function", "functions", metavar="NAME=MODULE:FUNCTION", multiple=True, help="A Lambda function.")
@click.option("--parameter", "parameters", metavar="NAME=VALUE", multiple=True, help="For the template; repeatable.")
@click.option("--fault", "faults", metavar="KEY=VALUE", multiple=True, help="Inject a fault, for example lose-ack=0.1.")
@click.option("--seed", type=options.WholeType(0), help="Inject the same faults again.")
@click.option(
    "--history",
    type=options.WholeType(0, 1_000_000),
    default=ServeSettings().history,
    show_default=True,
    help="How many events are remembered.",
)
def command(
    template: str | None,
    host: str,
    port: int,
    data: str | None,
    memory: bool,
    account: str,
    region: str,
    access_key: str | None,
    secret_key: str | None,
    admin_token: str | None,
    no_recreate_wait: bool,
    functions: tuple[str, ...],
    parameters: tuple[str, ...],
    faults: tuple[str, ...],
    seed: int | None,
    history: int,
) -> Answer:
    """A local SQS for any AWS SDK, durable, until stopped.

    With TEMPLATE (CloudFormation or SAM) its queues, functions and event source mappings are made first. SIGTERM or Ctrl-C
    finishes the requests in progress; what was acknowledged survives kill -9.
    """
    if memory and data is not None:
        raise UsageError(f"Both --memory and --data {data} were given.", todo="Give one of them.")
    settings = ServeSettings(
        host=host,
        port=port,
        data=None if memory else data or serving.DATA,
        account=account,
        region=region,
        access_key=access_key,
        secret_key=secret_key if access_key is not None or not _from_environment("secret_key") else None,
        admin_token=admin_token,
        recreate_wait=not no_recreate_wait,
        functions=tuple(_function(text) for text in functions),
        template=template,
        parameters=_parameters(parameters, template),
        faults=parse_faults([*faults, *([] if seed is None else [f"seed={seed}"])]),
        history=history,
    )
    wants_json = click.get_current_context().obj["json"]
    ready = _say_json if wants_json else _say
    say = log_output.to_standard_error(render.note)
    serving.run(
        settings,
        clock=SystemClock(),
        entropy=SystemEntropy(),
        ready=ready,
        on_line=lambda line: say(_shown(line)),
    )
    return Answer(None, said=True)


def _from_environment(parameter: str) -> bool:
    source = click.get_current_context().get_parameter_source(parameter)
    return source is click.core.ParameterSource.ENVIRONMENT


def _function(text: str) -> tuple[str, str]:
    name, equals, target = text.partition("=")
    if not (name and equals and target):
        raise UsageError(f"--function {text!r} is not NAME=MODULE:FUNCTION.", todo="For example book=shop:handler.")
    return name, target


def _parameters(words: tuple[str, ...], template: str | None) -> dict[str, str]:
    if words and template is None:
        raise UsageError(
            "--parameter is given without a template.", todo="Name the template: onefold serve TEMPLATE ..."
        )
    found = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not (name and equals):
            raise UsageError(f"--parameter {word!r} is not NAME=VALUE.", todo="For example --parameter Stage=dev.")
        found[name] = value
    return found


# --------------------------------------------------------------------------------------------------------- what it says


def _say_json(running: Serving) -> None:
    _print(redact.printable_json(serving.as_json(running).decode()))


def _say(running: Serving) -> None:
    settings, url = running.settings, running.url
    keys = "any credentials" if settings.access_key is None else f"signed with {settings.access_key}"
    where = "memory, until this process ends" if settings.data is None else f"{settings.data}, survives kill -9"
    shown = "any" if settings.access_key is None else "..."
    lines = [
        f"SQS at {url}",
        f"  data      {where}",
        f"  requests  {keys}; account {settings.account}, region {settings.region}",
        f'  boto3     boto3.client("sqs", endpoint_url="{url}", region_name="{settings.region}",',
        f'                         aws_access_key_id="{settings.access_key or shown}", aws_secret_access_key="{shown}")',
        f"  AWS CLI   aws --endpoint-url {url} --region {settings.region} sqs list-queues",
        f"  history   {_history(settings, url)}",
    ]
    faults = running.queues.faults.settings
    if faults.faults:
        lines.append(f"  faults    {' '.join(fault.text for fault in faults.faults)} (seed {faults.seed})")
    lines += [f"  note      {problem}" for problem in running.problems]
    planted = running.planted
    if planted is not None:
        lines.append(f"  template  {settings.template}")
        for what, names in (
            ("queues", planted.queues),
            ("functions", planted.functions),
            ("mappings", planted.mappings),
            ("subscriptions", planted.subscriptions),
        ):
            lines.append(f"            {what}: {', '.join(names) or 'none'}")
        lines += [f"            left out: {sentence}" for sentence in planted.left_out]
    lines.append("Ctrl-C stops it.")
    _print("\n".join(lines))


def _history(settings: ServeSettings, url: str) -> str:
    if settings.admin_token is not None:
        return f"{url}/_onefold/history, with the header Authorization: Bearer (the admin token)"
    if not is_loopback(settings.host):
        return "is not shown: other machines can reach this server; start it with --admin-token"
    return f"{url}/_onefold/history"


def _shown(line: LogLine) -> str:
    """A line of a function's log, with the start of its request id; escape sequences reach terminals only."""
    colours = log_output.is_terminal()
    text = redact.printable(line.text if colours else click.unstyle(line.text), colours=colours)
    return f"{line.request_id[:8]} | {text}"


def _print(text: str) -> None:
    click.echo(redact.printable(text))  # which flushes: the reader of a pipe waits for this
