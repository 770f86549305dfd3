"""One module per Kafka API. Each has `API` and `handle`; every module of this folder is served."""

import pkgutil

from lakehead.broker.protocol.api import Registry, load_registry


def registry() -> Registry:
    """Return every API of this folder."""
    return load_registry(__name__, sorted(module.name for module in pkgutil.iter_modules(__path__)))
