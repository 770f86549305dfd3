"""The process of a test's broker: `python -m lakehead.broker.testing.node_process SETTINGS`."""

import sys


def main() -> int:
    """Run a node; the exit status."""
    # kio imports hypothesis where it is installed, and structlog rich, which nothing here needs: a
    # third of a broker's start.
    for name in ("hypothesis", "rich"):
        sys.modules[name] = None  # type: ignore[assignment]
    from lakehead.broker.testing.served_node import run

    return run(sys.argv[1])


if __name__ == "__main__":
    sys.exit(main())
