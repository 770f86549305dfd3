"""Object stores that speak the API of S3, by obstore and, where that falls short, by boto3."""
