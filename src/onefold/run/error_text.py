"""What exceptions say, as far as it may be kept: one line each, cut and masked, or nothing where the user switched it off.

Records, dead letters, logs and events get the text of an exception from here, or from `failures.classify` with `is_kept`.
Never here: what a failure means. Invariant: nothing raises, and no text of an exception that is switched off passes.
"""

from __future__ import annotations

import os
from typing import Final

ERROR_TEXT: Final = "ONEFOLD_ERROR_TEXT"  # `off`: what exceptions say is kept nowhere; child processes inherit it
SWITCHED_OFF: Final = "(its text is switched off)"


def is_kept() -> bool:
    """Whether what exceptions say may be kept."""
    return os.environ.get(ERROR_TEXT, "on") != "off"


def kept_text(error: BaseException) -> str:
    """One line about an exception, at most 500 characters, as `failures.summary_of` says it."""
    from onefold.decide.failures import summary_of  # only a failure pays for the tables

    return summary_of(error) if is_kept() else SWITCHED_OFF
