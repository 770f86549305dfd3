"""JSON texts as Variants, by the kernel that makes VARIANT columns."""

from collections.abc import Sequence

import numpy as np

from lakehead.lake.tables.values.cells import SIZE_BITS
from lakehead.lake.tables.values.variant_kernel import encode_variants


def encoded(texts: Sequence[bytes]) -> list[tuple[bytes, bytes, int]]:
    """Return value, dictionary and fault of each text; each is followed by another byte."""
    places, data = [], bytearray()
    for text in texts:
        places.append(len(data) << SIZE_BITS | len(text))
        data += text + b","
    value, ends, names, name_ends, faults = encode_variants(
        np.frombuffer(bytes(data), np.uint8),
        np.array(places, np.int64),
        np.ones(len(texts), np.uint8),
    )
    return [
        (
            value[ends[row] : ends[row + 1]].tobytes(),
            names[name_ends[row] : name_ends[row + 1]].tobytes(),
            int(faults[row]),
        )
        for row in range(len(texts))
    ]
