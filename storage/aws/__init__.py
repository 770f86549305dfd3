"""Amazon EC2 as a block WAL needs it: the instance's metadata and its EBS volumes.

Used only if an address or a setting requires it; boto3 is imported at the first call.
"""
