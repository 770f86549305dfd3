"""`python -m lakehead`: the `lakehead` command where no script is installed."""

from lakehead.broker.cli.process import run

if __name__ == "__main__":
    run()
