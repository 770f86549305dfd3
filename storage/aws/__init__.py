"""Amazon EC2: the instance's metadata, its EBS volumes and network interfaces.

Used only if an address or a setting requires it; boto3 is imported at the first call.
"""
