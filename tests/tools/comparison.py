"""What came of a call on both sides, and whether that is the same."""

import difflib
from dataclasses import dataclass

from tests.tools.call import Call
from tests.tools.differences import KNOWN, Difference
from tests.tools.masks import masked
from tests.tools.one_jvm import Ran

SAME, KNOWN_DIFFERENCE, DIFFERENT = "same", "known", "different"


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """A call, how it ended on Kafka and on Lakehead, and what is known to differ in it."""

    call: Call
    kafka: Ran
    lakehead: Ran

    @property
    def known(self) -> list[Difference]:
        return [one for one in KNOWN if one.is_about(self.call.line)]

    @property
    def explaining(self) -> list[Difference]:
        """Those of them that are to be seen."""
        lines = [line[2:] for line in self.changes]
        return [one for one in self.known if any(one.hides(line) for line in lines)]

    @property
    def verdict(self) -> str:
        """`same`; `known`: the same but for what is known; `different`."""
        theirs, ours = self.lines(self.kafka), self.lines(self.lakehead)
        if theirs == ours:
            return SAME
        for difference in self.known:
            theirs, ours = difference.rest(theirs), difference.rest(ours)
        return KNOWN_DIFFERENCE if theirs == ours else DIFFERENT

    def lines(self, ran: Ran) -> list[str]:
        """Return what counts of a run: the status, then the lines of output and errors."""
        call = self.call
        parts = (
            masked(text, is_ordered=call.is_ordered, hides_figures=call.hides_figures)
            for text in (ran.output, ran.errors)
        )
        return [f"status {ran.status}", *(line for part in parts for line in part)]

    @property
    def changes(self) -> list[str]:
        """The lines that are only Kafka's (`-`) or only ours (`+`)."""
        found = difflib.ndiff(self.lines(self.kafka), self.lines(self.lakehead))
        return [line for line in found if line[0] in "-+"]
