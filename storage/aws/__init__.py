"""What a machine on Amazon EC2 is told of itself, and the EBS volumes it has or may have.

Used only where an address or a setting asks for it; boto3 is imported at the first call.
"""
