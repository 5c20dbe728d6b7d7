"""`manage.py onefold_worker`: run the tasks of a backend until stopped. Takes the options of `onefold worker`.

Never here: a worker of its own; it runs that of `onefold worker`. Invariant: Django is set up in this process and in
its child processes.
"""

from __future__ import annotations

import sys
from typing import Any

from django.core.management.base import BaseCommand

from onefold.cli import main
from onefold.django.backend import app_of


class Command(BaseCommand):  # type: ignore[misc]  # Django ships no types
    """Runs a worker in this process; its child processes set up Django as this one did."""

    help = (
        "Run the tasks of a backend until stopped. All options of `onefold worker` are taken: --threads, --asyncio,"
        " --processes, --queues, --schedules, --until-empty, --metrics, --log, ... (onefold worker --help)."
    )

    def add_arguments(self, parser: Any) -> None:
        """Add the command's only option of its own; the others are the worker's."""
        parser.add_argument("--backend", default="default", metavar="ALIAS", help="Entry of TASKS (default: default).")

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> Any:
        """A parser that leaves unknown options to the worker."""
        parser = super().create_parser(prog_name, subcommand, **kwargs)
        known = parser.parse_known_args

        def parse_args(args: Any = None, namespace: Any = None) -> Any:
            found, rest = known(args, namespace)
            found.rest = rest
            return found

        parser.parse_args = parse_args
        return parser

    def handle(self, *_args: Any, **options: Any) -> None:
        """Run the worker; the process ends with its exit code."""
        app_of(options["backend"])
        quiet = ["--no-progress"] if options["verbosity"] == 0 else []
        code = main.run(["worker", f"onefold.django.child:{options['backend']}", *quiet, *options.get("rest", [])])
        if code:
            sys.exit(code)
