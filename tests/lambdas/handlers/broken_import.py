"""A module whose import raises."""

import nowhere_to_be_found  # noqa: F401
