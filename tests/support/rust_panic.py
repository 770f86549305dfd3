"""The error of a library in Rust that panics."""


class Panic(BaseException):
    """A panic, as PyO3 raises it: it is not an Exception."""
