"""Tables of docs/aws-day.md, made of the trials: `python -m tests.aws_day.day_page` writes them."""

from pathlib import Path

from tests.aws_day.trials import TRIALS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "aws-day.md"


def figures_table() -> str:
    """Return a row for each figure of each trial."""
    rows = [
        f"| {trial.name} | `{one.name}` | {one.unit} | {one.limit() or 'open'} | {one.source} |"
        for trial in TRIALS
        for one in trial.expected
    ]
    head = "| Trial | Figure | Unit | Expected | By |"
    return "\n".join([head, "| --- | --- | --- | --- | --- |", *rows])


def trials_table() -> str:
    """Return a row for each trial."""
    rows = [
        f"| `{trial.name}` | {_sentence(type(trial).__doc__)} | {trial.minutes} |"
        for trial in TRIALS
    ]
    return "\n".join(["| Trial | Method | Minutes |", "| --- | --- | --- |", *rows])


def with_tables(text: str) -> str:
    """Return the page with both tables as they are now."""
    for name, table in (("trials", trials_table()), ("figures", figures_table())):
        begin, end = f"<!-- {name} -->\n", f"\n<!-- end of {name} -->"
        before, _, rest = text.partition(begin)
        text = f"{before}{begin}{table}{end}{rest.partition(end)[2]}"
    return text


def _sentence(docstring: str | None) -> str:
    return " ".join((docstring or "").split()).removesuffix(".")


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text()))
