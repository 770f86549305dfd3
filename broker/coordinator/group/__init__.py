"""Groups: the classic protocol, KIP-848 (`consumer`), share groups (`share`), committed offsets,
and the shell that stores all of them.
"""
