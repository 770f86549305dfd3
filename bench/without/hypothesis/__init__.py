"""In place of Hypothesis, for brokers: kio imports it where it is to be had, which takes a fifth of
a start. Users do not install it.
"""

raise ImportError("a broker does without Hypothesis")
