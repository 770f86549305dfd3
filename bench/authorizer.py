"""Time of access decisions with many rules: `python -m bench.authorizer`.

Rules are those of many users with topics, prefixes and groups of their own. A decision that is
remembered is what each Produce and Fetch request costs; one that is not, what each costs once after
a change of the rules.
"""

import argparse
import random
import time
from collections.abc import Callable

from lakehead.broker.security.authorizer import AclOperation, ResourceType
from lakehead.broker.security.principal import KafkaPrincipal
from lakehead.broker.security.standard_authorizer import StandardAuthorizer
from lakehead.storage.metadata.records import AclBinding, AclCreate, AclDelete, Entry
from lakehead.storage.metadata.rules import apply_records
from lakehead.storage.metadata.state import MetadataImage

_USERS, _ROUNDS = 500, 20_000
_HOST = "10.0.0.7"


def rules(count: int, rng: random.Random) -> tuple[AclBinding, ...]:
    """Return `count` different rules."""
    made: dict[AclBinding, None] = {}
    while len(made) < count:
        user, number = rng.randrange(_USERS), rng.randrange(count)
        is_prefix = rng.random() < 0.2
        kind = rng.choice(["topic", "topic", "group"])
        name = f"team-{user}." if is_prefix else f"team-{user}.{kind}-{number}"
        acl = AclBinding(
            resource_type=kind,
            resource_name=name,
            pattern_type="prefixed" if is_prefix else "literal",
            principal=f"User:u{user}",
            host=rng.choice(["*", "*", "10.0.0.0/8", f"10.0.{user % 256}.7"]),
            operation=rng.choice(["read", "write", "describe", "all"]),
            permission="deny" if rng.random() < 0.05 else "allow",
        )
        made[acl] = None
    return tuple(made)


def main() -> None:
    """Print a line for each measurement."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rules", type=int, default=10_000)
    given = parser.parse_args()
    rng = random.Random(1)
    every = rules(given.rules, rng)
    state = apply_records(MetadataImage(), [AclCreate(acls=every)], 0)
    began = time.process_time()
    authorizer = StandardAuthorizer(state, frozenset({"User:admin"}), by_default=False)
    print(f"{len(authorizer):,} rules; index made in {(time.process_time() - began) * 1e3:.1f} ms")
    asked = [
        (KafkaPrincipal("User", acl.principal.removeprefix("User:")), acl.resource_name + "x")
        for acl in rng.sample(every, min(2_000, len(every)))
    ]

    def decide() -> None:
        for principal, name in asked:
            authorizer.authorize(principal, _HOST, AclOperation.WRITE, ResourceType.TOPIC, name)

    fresh = _best(decide, len(asked), before=lambda: authorizer.follow(_changed(state), None))
    kept = _best(decide, len(asked))
    print(f"a decision: {fresh * 1e6:.2f} us, remembered {kept * 1e6:.3f} us")
    gone = AclDelete(acls=every[:1])
    one = AclCreate(acls=every[:1])
    after = apply_records(state, [gone], 0)

    def change() -> None:
        authorizer.follow(after, _entry(gone))
        authorizer.follow(state, _entry(one))

    authorizer.follow(state, None)
    print(f"a change of one rule: {_best(change, 2) * 1e6:.1f} us")


def _best(call: Callable[[], None], count: int, before: Callable[[], object] = bool) -> float:
    """Return the processor time of one of `count` operations of a call, the best of some rounds."""
    best = float("inf")
    for _ in range(max(3, _ROUNDS // max(count, 1) // 3)):
        before()
        began = time.process_time()
        call()
        best = min(best, time.process_time() - began)
    return best / count


def _changed(state: MetadataImage) -> MetadataImage:
    """Return an image with other rules that are the same, so that decisions are forgotten."""
    extra = next(iter(state.acls))
    without = apply_records(state, [AclDelete(acls=(extra,))], 0)
    return apply_records(without, [AclCreate(acls=(extra,))], 0)


def _entry(*records: AclCreate | AclDelete) -> Entry:
    return Entry(version=2, writer="w", nonce="n", time_ms=0, records=records)


if __name__ == "__main__":
    main()
