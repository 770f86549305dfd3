output "bucket" {
  description = "Name of the bucket, known once it is made."
  value       = aws_s3_bucket.this.bucket
}

output "kms_key_arn" {
  description = "ARN of the key that encrypts what is written to the bucket."
  value       = local.kms_key_arn
}

output "own_kms_key_arn" {
  description = "ARN of the cluster's own key; null without one."
  value       = one(aws_kms_key.this[*].arn)
}

output "own_kms_key_policy_json" {
  description = "Policy of the cluster's own key; null without one."
  value       = one(aws_kms_key.this[*].policy)
}

output "node_key_arn" {
  description = "ARN of the cluster's own key by which nodes encrypt; null without one."
  value       = one(aws_kms_key.nodes[*].arn)
}

output "node_key_policy_json" {
  description = "Policy of that key; null without one."
  value       = one(aws_kms_key.nodes[*].policy)
}

output "bucket_policy_json" {
  description = "The bucket's policy: TLS only."
  value       = local.tls_only_policy_json
}

output "force_destroy" {
  description = "True if destroy may delete a bucket with data in it."
  value       = aws_s3_bucket.this.force_destroy
}

output "wal_bucket" {
  description = "Name of the directory bucket for the write-ahead log; null without one."
  value       = one(aws_s3_directory_bucket.wal[*].bucket)
}
