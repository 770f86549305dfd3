"""`python -m broker.cli`: the `lakehead` command where no script is installed."""

from broker.cli.process import run

if __name__ == "__main__":
    run()
