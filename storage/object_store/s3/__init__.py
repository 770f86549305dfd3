"""Object stores that speak the API of S3, by obstore and, where that falls short, by boto3."""

from lakehead.storage.object_store.s3.multipart import OldVersion
from lakehead.storage.object_store.s3.store import S3Store

__all__ = ["OldVersion", "S3Store"]
