"""Figures of a sandbox day, what each is compared with, and the report as Markdown and JSON."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What a figure is compared with: at most, at least, or exactly; and where that comes from."""

    name: str
    unit: str
    source: str
    at_most: float | None = None
    at_least: float | None = None

    def limit(self) -> str:
        """Return the comparison in words."""
        if self.at_most is not None and self.at_most == self.at_least:
            return f"{self.at_most:g}"
        if self.at_most is not None:
            return f"at most {self.at_most:g}"
        return "" if self.at_least is None else f"at least {self.at_least:g}"

    def judge(self, value: float) -> str:
        """Return ok, off, or noted where there is nothing to compare with."""
        if self.at_most is None and self.at_least is None:
            return "noted"
        low = self.at_least is not None and value < self.at_least
        return "off" if low or (self.at_most is not None and value > self.at_most) else "ok"


@dataclass(slots=True, kw_only=True)
class Result:
    """A trial's end: "done", "failed", "stopped" (over a limit) or "not run", with its figures."""

    trial: str
    state: str = "not run"
    reason: str = ""
    minutes: float = 0.0
    dollars: float = 0.0
    figures: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def save(self, folder: Path) -> None:
        """Write it for a run that goes on later."""
        new = folder / "result.json.new"
        new.write_text(json.dumps(asdict(self), indent=1))
        new.replace(folder / "result.json")

    @classmethod
    def saved(cls, folder: Path) -> "Result | None":
        """Return what save() wrote, if anything."""
        path = folder / "result.json"
        return cls(**json.loads(path.read_text())) if path.exists() else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """All of a run."""

    run: str
    account: str
    region: str
    emulated: bool
    results: Sequence[Result]
    expected: dict[str, Sequence[Expected]]
    left: Sequence[str]
    dollars: float

    def rows(self) -> list[dict[str, Any]]:
        """Return a row for each figure that was expected: absent ones have the value None."""
        rows = []
        for result in self.results:
            for one in self.expected[result.trial]:
                value = result.figures.get(one.name)
                rows.append(
                    {
                        "trial": result.trial,
                        "figure": one.name,
                        "value": value,
                        "unit": one.unit,
                        "limit": one.limit(),
                        "verdict": "absent" if value is None else one.judge(value),
                        "source": one.source,
                    }
                )
        return rows

    def status(self) -> int:
        """Return the exit status: 0 all done and nothing left, 1 a trial fell short, 2 something is
        left in the account.
        """
        if self.left:
            return 2
        short = any(row["verdict"] in {"off", "absent"} for row in self.rows())
        return int(short or any(one.state != "done" for one in self.results))

    def write(self, folder: Path) -> Path:
        """Write report.json and report.md; return the latter."""
        told = {
            "run": self.run,
            "account": self.account,
            "region": self.region,
            "emulated": self.emulated,
            "dollars_estimated": round(self.dollars, 2),
            "trials": [asdict(one) for one in self.results],
            "figures": self.rows(),
            "left": list(self.left),
        }
        (folder / "report.json").write_text(json.dumps(told, indent=1) + "\n")
        page = folder / "report.md"
        page.write_text(self.markdown())
        return page

    def markdown(self) -> str:
        """Return the page."""
        lines = [
            f"# Sandbox day {self.run}",
            "",
            f"Region {self.region}; about {self.dollars:.2f} dollars by estimate.",
        ]
        if self.emulated:
            lines += ["", "**A dry run against an emulator: no figure here is AWS's.**"]
        lines += [
            "",
            "| Trial | State | Minutes | Dollars | Reason |",
            "| --- | --- | --- | --- | --- |",
        ]
        lines += [
            f"| {one.trial} | {one.state} | {one.minutes:.1f} | {one.dollars:.2f} | "
            f"{_cell(one.reason)} |"
            for one in self.results
        ]
        lines += ["", "| Trial | Figure | Value | Expected | Verdict | By |"]
        lines += ["| --- | --- | --- | --- | --- | --- |"]
        for row in self.rows():
            value = "" if row["value"] is None else f"{row['value']:g} {row['unit']}".strip()
            lines.append(
                f"| {row['trial']} | {row['figure']} | {value} | {row['limit']} | "
                f"{row['verdict']} | {row['source']} |"
            )
        lines += ["", "## Left in the account", ""]
        lines += [f"- {one}" for one in self.left] or ["Nothing."]
        lines += [f"\n{one.trial}: {note}" for one in self.results for note in one.notes]
        return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "/").split())[:300]
