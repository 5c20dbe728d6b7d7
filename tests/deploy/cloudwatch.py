"""What CloudWatch makes of an alarm in a template, a minute at a time: statistics, metric math, M of N, missing data.

Only as much of it as our alarms use. Where the user guide leaves something open, this is the harder reading: `FILL` of a
metric that has no value at all in the range gives none. Sources: CloudWatch user guide, "Using math expressions with
CloudWatch metrics", "How alarms treat missing data", "Alarm evaluation", "Filter pattern syntax for metric filters".
"""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Value = float | None
Series = Mapping[str, Sequence[Value]]
"""By the metric's name, its value in each minute; None where nothing was sent. Each reaches back without end."""


def states(alarm: Mapping[str, Any], series: Series, minutes: int) -> list[bool]:
    """Whether the alarm is on after each minute.

    Args:
        alarm: properties of AWS::CloudWatch::Alarm.
    """
    return [_is_on(alarm, series, minute) for minute in range(1, minutes + 1)]


def _is_on(alarm: Mapping[str, Any], series: Series, until: int) -> bool:
    queries = alarm.get("Metrics")
    if queries is None:
        stat = alarm.get("Statistic") or alarm["ExtendedStatistic"]
        queries = [{"Id": "value", "MetricStat": {"Metric": alarm, "Period": alarm["Period"], "Stat": stat}}]
    (shown,) = [one for one in queries if one.get("ReturnData", True)]
    measured = [one for one in queries if "MetricStat" in one]
    (length,) = {one["MetricStat"]["Period"] // 60 for one in measured}
    count = alarm["EvaluationPeriods"]
    values = {
        one["Id"]: [
            _statistic(
                one["MetricStat"]["Stat"], series.get(one["MetricStat"]["Metric"]["MetricName"], ()), end - length, end
            )
            for end in range(until - (count - 1) * length, until + 1, length)
        ]
        for one in measured
    }
    found = _evaluated(shown["Expression"], values, count) if "Expression" in shown else values[shown["Id"]]
    assert alarm["ComparisonOperator"] == "GreaterThanOrEqualToThreshold"
    is_bad = {"notBreaching": False, "breaching": True}[alarm["TreatMissingData"]]
    bad = [is_bad if one is None else one >= alarm["Threshold"] for one in found]
    return bool(sum(bad) >= alarm.get("DatapointsToAlarm", count))


def _statistic(name: str, values: Sequence[Value], start: int, end: int) -> Value:
    there = sorted(one for one in values[max(start, 0) : max(end, 0)] if one is not None)
    if not there:
        return None
    if name.startswith("p"):
        return there[math.ceil(float(name[1:]) / 100 * len(there)) - 1]
    assert name in ("Sum", "Maximum", "Average"), name
    return max(there) if name == "Maximum" else sum(there) / (len(there) if name == "Average" else 1)


def _evaluated(expression: str, values: Mapping[str, list[Value]], count: int) -> list[Value]:
    tree = ast.parse(re.sub(r"\bAND\b", "and", expression), mode="eval").body
    return [_at(tree, values, place) for place in range(count)]


def _at(node: ast.AST, values: Mapping[str, list[Value]], place: int) -> Value:
    """The value of a part of an expression in one period; None where one of its parts has none."""

    def at(one: ast.AST) -> Value:
        return _at(one, values, place)

    match node:
        case ast.Constant(value=number):
            return float(str(number))
        case ast.Name(id=name):
            return values[name][place]
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return _if_all(lambda value: -value, at(operand))
        case ast.BinOp(left=left, op=op, right=right):
            return _if_all(_OPERATIONS[type(op)], at(left), at(right))
        case ast.Compare(left=left, ops=[compared], comparators=[right]):
            return _if_all(_OPERATIONS[type(compared)], at(left), at(right))
        case ast.BoolOp(op=ast.And(), values=[left, right]):
            return _if_all(lambda one, other: float(bool(one and other)), at(left), at(right))
        case ast.Call(func=ast.Name(id=function), args=arguments):
            return _called(function, arguments, values, place)
        case _:
            raise AssertionError(f"CloudWatch has no {ast.dump(node)}")


_OPERATIONS: Mapping[type[ast.AST], Callable[[float, float], float | None]] = {
    ast.Add: operator.add, ast.Mult: operator.mul, ast.Div: lambda one, other: one / other if other else None,
    ast.Eq: operator.eq, ast.Gt: operator.gt, ast.LtE: operator.le,
}  # fmt: skip


def _if_all(operation: Callable[..., Value], *parts: Value) -> Value:
    return None if None in parts else operation(*parts)


def _called(function: str, arguments: Sequence[ast.AST], values: Mapping[str, list[Value]], place: int) -> Value:
    if function == "IF":
        condition, yes, no = arguments
        holds = _at(condition, values, place)
        return None if holds is None else _at(yes if holds else no, values, place)
    if function == "FILL":
        name, default = arguments
        assert isinstance(name, ast.Name)
        found = values[name.id][place]
        has_some = any(one is not None for one in values[name.id])
        return found if found is not None or not has_some else _at(default, values, place)
    assert function == "SUM", function
    (several,) = arguments
    assert isinstance(several, ast.List)
    there = [value for one in several.elts if (value := _at(one, values, place)) is not None]
    return sum(there) if there else None


def counts(pattern: str, line: str) -> bool:
    """Whether a metric filter counts a line of a log.

    Args:
        pattern: `FilterPattern`, of phrases: all of them, any of those with `?`, and none of those with `-`.
    """
    terms = [(sign, re.sub(r"\\(.)", r"\1", text)) for sign, text in re.findall(r'([?-]?)"((?:[^"\\]|\\.)*)"', pattern)]
    held = {sign: [text in line for one, text in terms if one == sign] for sign in ("", "?", "-")}
    return all(held[""]) and (not held["?"] or any(held["?"])) and not any(held["-"])
