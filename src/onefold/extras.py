"""Packages that come with an extra: where one is missing, the error says which extra to install.

Never here: importing one of them. Invariant: what is missing of onefold itself, or of the user's own code, stays what it is.
Private: may change with any release.
"""

from __future__ import annotations

from typing import Final

from onefold.errors import UsageError

_PACKAGES: Final = {
    "cli": ("click", "rich", "jmespath"),
    "demo": ("aiohttp",),
    "check": ("yaml",),
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
        what: needs it, to begin a sentence: "The page". extra: it comes with. more: to do beside installing that.
    """
    return UsageError(
        f"{what} needs the package {package}, which is not installed.",
        meaning=f"onefold installs light; the package comes with the extra `{extra}`.",
        todo=f"Run: pip install 'onefold[{extra}]'{more}",
    )


class needed:  # noqa: N801 - for `with`, as a function is named
    """For `with`, around the imports of an extra's packages, or of modules of ours that import them; arguments as `missing`.

    Raises:
        UsageError: one of the extra's packages is not installed.
    """

    def __init__(self, what: str, extra: str, more: str = "") -> None:
        self._what, self._extra, self._more = what, extra, more

    def __enter__(self) -> None:
        """Nothing is done before."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Say which extra to install, where an import has failed for want of a package of it."""
        if isinstance(error, ModuleNotFoundError):
            package = (error.name or "").partition(".")[0]
            if package in _PACKAGES[self._extra]:
                raise missing(self._what, package, self._extra, self._more) from None
