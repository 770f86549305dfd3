"""The rules of transactions: what readers of committed records may see, by what became of each."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from tests.support.transaction_traffic import Outcomes


def transaction_violations(
    outcomes: Outcomes, seen: Sequence[str], values_of: Callable[[int], list[str]]
) -> Iterator[str]:
    """Yield every breach in the values that a reader of committed records saw. `values_of` a
    transaction are those that it writes; each value begins with the transaction's number.

    - duplicate: a value is there twice;
    - torn: some values of a transaction are there and others are not;
    - lost: a transaction was committed, and nothing of it is there;
    - aborted: a transaction is there that was aborted, or that nobody began.
    """
    counts = Counter(seen)
    yield from (f"duplicate: {value} is there {n} times" for value, n in counts.items() if n > 1)
    found: Counter[int] = Counter(int(value.split("-")[0]) for value in counts)
    for number, count in sorted(found.items()):
        whole = len(values_of(number))
        if count != whole:
            yield f"torn: {count} of {whole} values of transaction {number}"
        if number not in outcomes.committed and number not in outcomes.unknown:
            fate = "was aborted" if number in outcomes.aborted else "was never begun"
            yield f"aborted: transaction {number} {fate}"
    yield from (
        f"lost: transaction {number} was committed"
        for number in sorted(outcomes.committed - found.keys())
    )
