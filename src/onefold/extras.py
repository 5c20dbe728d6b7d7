"""Packages that come with an extra: if one is missing, the error says which extra to install.

Never here: importing one of them. Invariant: errors about missing modules of onefold or of the user's code are
unchanged.
Private: may change with any release.
"""

from __future__ import annotations

from typing import Final

from onefold.errors import UsageError

_PACKAGES: Final = {
    "cli": ("click", "rich", "jmespath"),
    "demo": ("aiohttp",),
    "check": ("yaml",),
    "check-hcl": ("hcl2", "lark", "regex", "yaml"),
    "serve": ("botocore", "httptools", "uvloop", "yaml"),
    "aws": ("boto3", "botocore"),
    "postgres": ("psycopg", "psycopg_binary", "psycopg_pool"),
    "redis": ("redis",),
    "otel": ("opentelemetry",),
    "mcp": ("mcp",),
    "web": ("httptools", "uvloop", "jinja2", "markupsafe"),
    "powertools": ("aws_lambda_powertools",),
    "sqlalchemy": ("sqlalchemy",),
}


def missing(what: str, package: str, extra: str, more: str = "") -> UsageError:
    """The error for a package that is not installed.

    Args:
        what: the thing that needs it, as the beginning of a sentence: "The page". package: its name.
        extra: the extra that it comes with. more: what to do in addition to installing that, after the command.
    """
    return UsageError(
        f"{what} needs the package {package}, which is not installed.",
        meaning=f"onefold installs light; the package comes with the extra `{extra}`.",
        todo=f"Run: pip install 'onefold[{extra}]'{more}",
    )


class needed:  # noqa: N801 - used in `with`, so named like a function
    """A context manager around imports that need an extra's packages, directly or indirectly; arguments as `missing`.

    Raises:
        UsageError: one of the extra's packages is not installed.
    """

    def __init__(self, what: str, extra: str, more: str = "") -> None:
        self._what, self._extra, self._more = what, extra, more

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Raise the error that names the extra, if an import failed because one of its packages is missing."""
        if isinstance(error, ModuleNotFoundError):
            package = (error.name or "").partition(".")[0]
            if package in _PACKAGES[self._extra]:
                raise missing(self._what, package, self._extra, self._more) from None
