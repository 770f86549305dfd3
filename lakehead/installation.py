"""This installation: its release, and the folder in which Python finds the package.

Processes that are started elsewhere (Spark's workers, brokers of tests) get the folder by
PYTHONPATH. In a checkout it is the top of the repository.
"""

from pathlib import Path

VERSION = "0.1.0"
ROOT = Path(__file__).resolve().parents[1]
