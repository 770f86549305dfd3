output "bucket" {
  description = "Name of the bucket, known once it is made."
  value       = aws_s3_bucket.this.bucket
}

output "kms_key_arn" {
  description = "ARN of the key that encrypts bucket and volumes."
  value       = local.kms_key_arn
}

output "bucket_policy_json" {
  description = "The bucket's policy: TLS only."
  value       = local.tls_only_policy_json
}

output "force_destroy" {
  description = "Whether destroy may delete a bucket with data in it."
  value       = aws_s3_bucket.this.force_destroy
}

output "wal_bucket" {
  description = "Name of the directory bucket for the write-ahead log; null without one."
  value       = one(aws_s3_directory_bucket.wal[*].bucket)
}
