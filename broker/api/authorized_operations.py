"""The operations that a client may do, as bits in responses (KIP-430): all of them, without access
rules.

Bits are numbers of Kafka's operations: READ 3, WRITE 4, CREATE 5, DELETE 6, ALTER 7, DESCRIBE 8,
CLUSTER_ACTION 9, DESCRIBE_CONFIGS 10, ALTER_CONFIGS 11, IDEMPOTENT_WRITE 12.
"""

NOT_ASKED = -(2**31)
"""The value in responses to requests without this question."""


def _bits(*operations: int) -> int:
    return sum(1 << operation for operation in operations)


ON_TOPICS = _bits(3, 4, 5, 6, 7, 8, 10, 11)
ON_CLUSTER = _bits(5, 7, 8, 9, 10, 11, 12)
