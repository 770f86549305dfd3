"""Envelope encryption by the client: data keys encrypt objects and logs, a wrapping key in AWS KMS
or in a file encrypts the data keys.
"""
