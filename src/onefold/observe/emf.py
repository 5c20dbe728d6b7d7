"""Metrics for CloudWatch without calling its API: `EmfSink` writes lines in the embedded metric format.

What collects the lines (Lambda, the CloudWatch agent) turns them into metrics. One line has the counts of one job
and queue since the last one: on Lambda at the end of each batch, in a worker once a minute. The namespace is
`onefold/<app>`, the dimensions are job and queue and nothing else, so that the number of metrics that AWS bills is bounded;
outcomes and states are part of the metric's name. The format is AWS's "Specification: Embedded metric format".
Never here: which metrics there are (`metrics.py`). Invariant: a line holds names, numbers and units, never a key or
text.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Final, TextIO

import msgspec

from onefold import limits
from onefold.observe.metrics import METRICS, Histogram, Labels, Meter, Metric, Sample
from onefold.runtime.events import Event

VALUES_MAX: Final = 100  # values of one metric in a line
METRICS_MAX: Final = 100  # metrics in one line
EMF_VARIABLE: Final = "ONEFOLD_EMF"  # `on` in the environment of a function or worker adds an `EmfSink`
EVERY_MS: Final = limits.MINUTE_MS  # CloudWatch's metrics have the resolution of a minute
_DIMENSIONS: Final = ("job", "queue")
_ITEMS: Final = {"duplicate": "Duplicates"}
_encode = msgspec.json.Encoder().encode


def namespace_of(app: str) -> str:
    """The namespace of an app's metrics in CloudWatch, unless its sink names another one."""
    return f"onefold/{app}"


class EmfSink:
    """A sink that writes CloudWatch's embedded metric format: `App("shop", sinks=[onefold.LogSink(), EmfSink()])`.

    Args:
        stream: where lines go; standard output unless given, which Lambda collects.
        namespace: the metrics' namespace; `onefold/<app>` unless given.
    """

    is_quick: Final = True  # it only counts, and writes a line a minute

    def __init__(self, stream: TextIO | None = None, *, namespace: str | None = None) -> None:
        self._stream = stream
        self._namespace = namespace
        self._counted = _Values()
        self._at_ms = 0
        self._since_ms: int | None = None

    def for_app(self, name: str) -> None:
        """Use the app's namespace, unless one was given."""
        if self._namespace is None:
            self._namespace = namespace_of(name)

    def namespace(self, app: str) -> str:
        """The namespace for an app's metrics."""
        return self._namespace or namespace_of(app)

    def emit(self, event: Event) -> None:
        """Count one event; write the counts after a minute, or when a line is full."""
        self._counted.emit(event)
        self._at_ms = event.at_ms
        if self._since_ms is None:
            self._since_ms = event.at_ms
        if self._counted.is_full or abs(event.at_ms - self._since_ms) >= EVERY_MS:
            self.flush()

    def flush(self, samples: Iterable[Sample] = (), at_ms: int | None = None) -> None:
        """Write the counts since the last time and these gauges, if there are any.

        Args:
            at_ms: when they were read, wall time; unless given, the time of the last event.
        """
        at_ms = self._at_ms if at_ms is None else at_ms
        self._since_ms = None
        said = emf_lines(self._namespace or "onefold", at_ms, self._counted.take(), samples)
        if said:
            stream = sys.stdout if self._stream is None else self._stream
            stream.write("".join(f"{line}\n" for line in said))
            stream.flush()


class _Values(Meter):
    """Like a meter, but keeps each value of a histogram until they are taken."""

    def __init__(self) -> None:
        super().__init__()
        self._numbers: dict[tuple[str, Labels], list[float]] = defaultdict(list)
        self.is_full = False

    def _record(self, name: str, labels: Labels, value: float) -> None:
        values = self._numbers[name, labels]
        values.append(value)
        self.is_full = self.is_full or len(values) >= VALUES_MAX

    def take(self) -> list[tuple[Metric, Labels, list[float]]]:
        """Return and forget all counts."""
        with self._lock:
            found = [(METRICS[name], labels, [value]) for (name, labels), value in self._counters.items()]
            found += [(METRICS[name], labels, values) for (name, labels), values in self._numbers.items()]
            self._counters, self._numbers, self.is_full = {}, defaultdict(list), False
        return found


def emf_name(metric: Metric, labels: Labels) -> str:
    """A metric's name in CloudWatch, which includes its outcome or state."""
    said = dict(labels)
    state = said.get("state") or said.get("outcome") or ""
    if metric.name == "onefold.outcomes":  # the user's own names
        return metric.emf.replace("*", state)
    if metric.emf == "*" and state in _ITEMS:
        return _ITEMS[state]
    return metric.emf.replace("*", "".join(part.capitalize() for part in state.split("_")))


def emf_lines(
    namespace: str,
    at_ms: int,
    counted: Sequence[tuple[Metric, Labels, list[float]]],
    samples: Iterable[Sample] = (),
) -> list[str]:
    """Lines, without line ends: as many for each job and queue as their metrics and values need.

    Args:
        counted: since the last lines. samples: current gauges.
    """
    subjects: dict[tuple[str, str], dict[str, tuple[Metric, list[float]]]] = defaultdict(dict)
    gauges = [(one.metric, one.labels, [one.value]) for one in samples if not isinstance(one.value, Histogram)]
    for metric, labels, values in (*counted, *gauges):
        said = dict(labels)
        subject = subjects[said.get("job", ""), said.get("queue", "")]
        _, known = subject.setdefault(emf_name(metric, labels), (metric, []))
        if metric.instrument == "counter" and known:  # several kinds of failure are one metric
            known[0] += sum(values)
        else:
            known += values
    return [
        _line(namespace, at_ms, subject, part)
        for subject, metrics in subjects.items()
        for part in _parts(metrics)
    ]  # fmt: skip


def _parts(metrics: dict[str, tuple[Metric, list[float]]]) -> Iterable[dict[str, tuple[Metric, list[float]]]]:
    """The metrics of one job and queue in parts that fit a line."""
    while metrics:
        some = list(metrics.items())[:METRICS_MAX]
        yield {name: (metric, values[:VALUES_MAX]) for name, (metric, values) in some}
        rest = {name: (metric, values[VALUES_MAX:]) for name, (metric, values) in some if values[VALUES_MAX:]}
        metrics = {**rest, **dict(list(metrics.items())[METRICS_MAX:])}


def _line(namespace: str, at_ms: int, subject: tuple[str, str], metrics: dict[str, tuple[Metric, list[float]]]) -> str:
    dimensions = {name: value for name, value in zip(_DIMENSIONS, subject, strict=True) if value}
    sets = [["job"], ["job", "queue"]] if len(dimensions) == len(_DIMENSIONS) else [list(dimensions)]
    directive = {
        "Namespace": namespace,
        "Dimensions": sets,
        "Metrics": [{"Name": name, "Unit": metric.emf_unit} for name, (metric, _) in metrics.items()],
    }
    values = {name: _value(metric, values) for name, (metric, values) in metrics.items()}
    metadata = {"Timestamp": at_ms, "CloudWatchMetrics": [directive]}
    return _encode({"_aws": metadata, **dimensions, **values}).decode()


def _value(metric: Metric, values: list[float]) -> float | list[float]:
    if metric.emf_unit == "Milliseconds":
        values = [round(one * limits.SECOND_MS, 3) for one in values]
    return values[0] if len(values) == 1 else values
