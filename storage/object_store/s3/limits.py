"""Sizes of requests to S3, by which they are counted and billed."""

PART_SIZE = 16 * 1024 * 1024
"""S3 bills each part like a put, and takes at most 10,000 of an object: up to 156 GiB."""
MULTIPART_SIZE_MIN = 64 * 1024 * 1024
"""Below it one request is as quick, and a third of the requests' price."""
DELETES_AT_ONCE = 1000
"""As many keys as one request of S3 takes."""
LISTED_AT_ONCE = 1000
