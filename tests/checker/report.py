"""A run's report: as text, and as a page with a time line of operations, faults and throughput."""

import html
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tests.checker.figures import BUCKET_S, Figures
from tests.checker.nemesis import Event

SHOWN = 50
"""Anomalies, gaps and reasons shown at most."""
_WIDTH, _LEFT, _LANE = 1200, 110, 18
_COLOURS = {
    "killed": "#c0392b",
    "paused": "#8e44ad",
    "stopped": "#7f8c8d",
    "isolated": "#d35400",
    "no peers": "#e67e22",
    "deaf to peers": "#f39c12",
    "no clients": "#f1c40f",
    "no store": "#b9770e",
    "lossy": "#f5b041",
    "clock ahead": "#16a085",
    "clock behind": "#48c9b0",
}
_OTHER = "#2980b9"
_STYLE = """
body { font: 14px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 1250px; color: #222; }
h1 { font-size: 1.4em; } h2 { font-size: 1.1em; margin-top: 2em; }
table { border-collapse: collapse; } td, th { padding: 2px 12px 2px 0; text-align: left; }
.good { color: #1e8449; } .bad { color: #c0392b; } svg text { font: 11px system-ui, sans-serif; }
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What a report is about. Events' times are those of the clock that began at `began`."""

    title: str
    began: float
    figures: Figures
    events: Sequence[Event]
    anomalies: Sequence[str]
    notes: Sequence[str]
    """What was left out, and what clients complained of."""


def text(run: Run) -> str:
    """The report for a terminal."""
    lines = [run.title, "=" * len(run.title), "", *_verdict(run), ""]
    lines += [f"{name:<28} {value}" for name, value in _facts(run)]
    lines += ["", "what happened", *_happenings(run)]
    lines += ["", "longest pauses of a partition"]
    lines += [
        f"  partition {gap.partition:<3} {gap.seconds:6.2f} s, from {gap.begins:.1f} s"
        for gap in run.figures.gaps[:10]
    ]
    if run.figures.reasons:
        lines += ["", "why sends had no clear answer"]
        lines += [f"  {count:>6}  {reason}" for reason, count in _reasons(run)]
    return "\n".join([*lines, "", *run.notes]) + "\n"


def page(run: Run) -> str:
    """The report as one HTML page that needs nothing else."""
    verdict = "".join(f"<p>{html.escape(line)}</p>" for line in _verdict(run))
    style = "good" if not run.anomalies else "bad"
    pauses = (
        (f"partition {gap.partition}", f"{gap.seconds:.2f} s", f"from {gap.begins:.1f} s")
        for gap in run.figures.gaps[:SHOWN]
    )
    reasons = ((str(count), reason) for reason, count in _reasons(run))
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{html.escape(run.title)}</title>
<style>{_STYLE}</style></head><body>
<h1>{html.escape(run.title)}</h1>
<div class="{style}">{verdict}</div>
{_table(_facts(run))}
<h2>Time line</h2>
{_time_line(run)}
<h2>Faults</h2>
{_table((kind, str(count)) for kind, count in _kinds(run))}
<h2>Pauses of partitions, the longest first</h2>
{_table(pauses)}
<h2>Why sends had no clear answer</h2>
{_table(reasons)}
<h2>Notes</h2>
{"".join(f"<p>{html.escape(note)}</p>" for note in run.notes)}
</body></html>
"""


def _verdict(run: Run) -> list[str]:
    if not run.anomalies:
        return ["No anomaly."]
    more = len(run.anomalies) - SHOWN
    tail = [f"... and {more} more"] if more > 0 else []
    return [f"{len(run.anomalies)} ANOMALIES", *run.anomalies[:SHOWN], *tail]


def _facts(run: Run) -> list[tuple[str, str]]:
    figures = run.figures
    outcomes = ", ".join(f"{count:,} {name}" for name, count in figures.outcomes.items())
    longest = f"{figures.gaps[0].seconds:.2f} s" if figures.gaps else "under 1 s"
    return [
        ("length", f"{figures.seconds:.0f} s"),
        ("sends", outcomes),
        ("records read", f"{figures.reads:,}"),
        ("ends asked, commits", f"{figures.ends_told:,}, {figures.commits:,}"),
        ("produce delay p50, p99", f"{figures.delay_p50:.3f} s, {figures.delay_p99:.3f} s"),
        (
            "lag p50, p99, max",
            f"{figures.lag_p50:.3f} s, {figures.lag_p99:.3f} s, {figures.lag_max:.3f} s",
        ),
        ("longest pause", longest),
        ("faults", str(len(run.events))),
    ]


def _happenings(run: Run) -> list[str]:
    return [
        f"  {event.begun - run.began:7.1f} s to {event.ended - run.began:7.1f} s  "
        f"{event.target:<8} {event.kind}"
        for event in run.events
    ]


def _kinds(run: Run) -> list[tuple[str, int]]:
    names = [event.kind for event in run.events]
    return sorted(((name, names.count(name)) for name in set(names)), key=lambda kind: -kind[1])


def _reasons(run: Run) -> list[tuple[str, int]]:
    return sorted(run.figures.reasons.items(), key=lambda reason: -reason[1])[:SHOWN]


def _table(rows: Iterable[tuple[str, ...]]) -> str:
    cells = (
        "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    return f"<table>{''.join(cells)}</table>"


def _time_line(run: Run) -> str:
    """Throughput above, then a lane of faults for each target and one of pauses per partition."""
    scale = (_WIDTH - _LEFT) / max(run.figures.seconds, 1)
    height = 120
    parts = [*_throughput(run, scale, height)]
    top = height + 20
    targets = sorted({event.target for event in run.events})
    for target in targets:
        parts.append(_label(target, top))
        parts += [
            _bar(e.begun - run.began, e.ended - run.began, top, scale, _colour(e.kind), e.kind)
            for e in run.events
            if e.target == target
        ]
        top += _LANE
    for partition in sorted({gap.partition for gap in run.figures.gaps}):
        parts.append(_label(f"partition {partition}", top))
        parts += [
            _bar(gap.begins, gap.ends, top, scale, "#34495e", f"no answer, {gap.seconds:.2f} s")
            for gap in run.figures.gaps
            if gap.partition == partition
        ]
        top += _LANE
    parts += _axis(run.figures.seconds, scale, top)
    return f'<svg width="{_WIDTH}" height="{top + 20}">{"".join(parts)}</svg>'


def _throughput(run: Run, scale: float, height: int) -> list[str]:
    rates = run.figures.acknowledged
    most = max(rates, default=0.0) or 1.0
    points = " ".join(
        f"{_LEFT + index * BUCKET_S * scale:.1f},{height - rate / most * (height - 20):.1f}"
        for index, rate in enumerate(rates)
    )
    first, last = f"{_LEFT},{height}", f"{_LEFT + len(rates) * BUCKET_S * scale:.1f},{height}"
    return [
        f'<polygon points="{first} {points} {last}" fill="#aed6f1"/>',
        f'<text x="0" y="20">{most:,.0f} records/s</text>',
        f'<text x="0" y="{height}">acknowledged</text>',
    ]


def _label(name: str, top: float) -> str:
    return f'<text x="0" y="{top + _LANE - 5}">{html.escape(name)}</text>'


def _bar(begins: float, ends: float, top: float, scale: float, colour: str, name: str) -> str:
    title = f"{name}, {begins:.1f} s to {ends:.1f} s"
    return (
        f'<rect x="{_LEFT + begins * scale:.1f}" y="{top}" height="{_LANE - 4}" '
        f'width="{max((ends - begins) * scale, 1.5):.1f}" fill="{colour}">'
        f"<title>{html.escape(title)}</title></rect>"
    )


def _colour(kind: str) -> str:
    return _COLOURS.get(kind, _OTHER)


def _axis(seconds: float, scale: float, top: float) -> list[str]:
    step = next(step for step in (5, 10, 30, 60, 300, 1800, 1e9) if seconds / step <= 20)
    count = int(seconds // step) + 1
    return [
        f'<text x="{_LEFT + index * step * scale:.1f}" y="{top + 15}">{index * step:.0f} s</text>'
        for index in range(count)
    ]
