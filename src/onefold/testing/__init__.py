"""For tests of jobs (`inline`), and the contract suites that every backend passes."""

from onefold.testing.inline import World, inline

__all__ = ["World", "inline"]
