"""What of a tool's output is no matter: ids, times, ports, widths of columns, stack traces."""

import re

_MASKS = tuple(
    (re.compile(pattern, re.MULTILINE), shown)
    for pattern, shown in (
        (r"^\s+at .*\n", ""),
        (r"^\s+\.\.\. \d+ more\n", ""),
        (r"[ \t]+", " "),
        (r" $", ""),
        (r"(127\.0\.0\.1|localhost):\d+", "HOST:PORT"),
        (r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b", "UUID"),
        (r"\b[\w-]{22} (?=/127\.0\.0\.1 )", "MEMBER "),
        (r"\b(TopicId: |Cluster ID: |ClusterId: )\S+", r"\1ID"),
        (r"\[?\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d[,.]?\d*(Z|\])?", "DATE"),
        (r"\b1[6-9]\d{11}\b", "TIME"),
        (r'"size":\d+', '"size":N'),
        (r"(file:)?/\S+?/tools-[^/\s]+/[^\s\"',}\]]*", "FOLDER"),
        (r"\b(console|perf)-consumer-\d+", r"\1-consumer-N"),
        (r"(Valid states are: ).*", r"\1..."),
        (r"^(\d+ 127\.0\.0\.1) \d+", r"\1 PORT"),
        (r"-{3,}", "---"),
    )
)
_FIGURE = re.compile(r"\d+([.,]\d+)?(E-?\d+)?")


def masked(text: str, *, is_ordered: bool = False, hides_figures: bool = False) -> list[str]:
    """Return the lines that count, sorted unless their order counts too.

    Of a measurement the figures are hidden: they are of the machine.
    """
    for pattern, shown in _MASKS:
        text = pattern.sub(shown, text)
    if hides_figures:
        text = _FIGURE.sub("N", text)
    lines = [line for line in text.splitlines() if line.strip()]
    return lines if is_ordered else sorted(lines)
