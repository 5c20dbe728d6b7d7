"""Every alarm that an embedded engine evaluates begins when its condition is true, and ends when it is not any more."""

from __future__ import annotations

import pytest

from onefold import errors
from onefold.observe import alarms
from onefold.testing.alarm_drills import DRILLS, drill


def test_there_is_a_drill_for_each_alarm_of_this_side() -> None:
    assert sorted(DRILLS) == sorted(one.name for one in alarms.on("embedded"))


@pytest.mark.parametrize("name", sorted(DRILLS))
def test_an_alarm_begins_and_ends(name: str) -> None:
    result = drill(name)
    kinds = [one.kind for one in result.reports]
    assert (kinds[0], kinds[-1]) == ("began", "ended")
    assert all(one.severity == alarms.ALARMS[name].severity and one.drill for one in result.reports)
    assert kinds.count("began") == 1
    assert len({one.id for one in result.reports}) == len(result.reports)


def test_an_alarm_that_only_aws_evaluates_cannot_be_tried_here() -> None:
    with pytest.raises(errors.NotFoundError, match="only by cloudwatch"):
        drill("throttles")
    with pytest.raises(errors.NotFoundError, match="There is no alarm 'nonsense'"):
        drill("nonsense")
