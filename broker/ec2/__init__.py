"""A machine on EC2 that serves as a host: its slot, its auto-scaling group, notices of its end.

Used only if a setting or a command requires it; boto3 is imported at the first call.
"""
