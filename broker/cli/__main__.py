"""`python -m broker.cli`: the `lakehead` command where no script is installed."""

from broker.cli.app import main

if __name__ == "__main__":
    main()
