locals {
  kms_key_arn = var.kms_key_arn == null ? aws_kms_key.this[0].arn : var.kms_key_arn

  # KMS itself refuses to delete the key of a bucket that may hold data, to whatever it is that tries:
  # a changed variable, a destroy, a console. A key that waits for its deletion decrypts nothing.
  key_statements = [
    {
      Sid       = "KeptAsLongAsData"
      Effect    = "Deny"
      Principal = "*"
      Action    = "kms:ScheduleKeyDeletion"
      Resource  = "*"
    },
  ]

  # The account's IAM policies decide who may use a key, as with AWS's own default.
  key_policy_json = jsonencode({
    Version = "2012-10-17"
    Statement = concat(
      [{
        Sid       = "AccountDecides"
        Effect    = "Allow"
        Principal = { AWS = "arn:${data.aws_partition.current.partition}:iam::${data.aws_caller_identity.current.account_id}:root" }
        Action    = "kms:*"
        Resource  = "*"
      }],
      [for statement in local.key_statements : statement if !var.force_destroy],
    )
  })

  tls_only_policy_json = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Sid       = "TlsOnly"
      Effect    = "Deny"
      Principal = "*"
      Action    = "s3:*"
      Resource = [
        "arn:${data.aws_partition.current.partition}:s3:::${var.bucket}",
        "arn:${data.aws_partition.current.partition}:s3:::${var.bucket}/*",
      ]
      Condition = { Bool = { "aws:SecureTransport" = "false" } }
    }]
  })
}

data "aws_partition" "current" {}

data "aws_caller_identity" "current" {}

# Of the bucket alone, so that nothing that outlives a destroy, such as a snapshot, needs it.
resource "aws_kms_key" "this" {
  count                   = var.own_kms_key ? 1 : 0
  depends_on              = [aws_s3_bucket.this] # a name that is taken is found out before
  description             = "Lakehead ${var.name}: bucket ${var.bucket}"
  enable_key_rotation     = true
  deletion_window_in_days = 30
  tags                    = merge(var.tags, { Name = var.name })
  policy                  = local.key_policy_json
}

# By which nodes encrypt before S3 has anything. A key apart from the bucket's: roles that read objects
# through S3 have that one.
resource "aws_kms_key" "nodes" {
  count                   = var.node_key ? 1 : 0
  depends_on              = [aws_s3_bucket.this]
  description             = "Lakehead ${var.name}: data keys of nodes, bucket ${var.bucket}"
  enable_key_rotation     = true
  deletion_window_in_days = 30
  tags                    = merge(var.tags, { Name = "${var.name}-nodes" })
  policy                  = local.key_policy_json
}

# S3 itself refuses to delete a bucket that holds objects, unless force_destroy empties it first.
resource "aws_s3_bucket" "this" {
  #checkov:skip=CKV_AWS_21:objects have names of their own and are never overwritten; versions would be paid for and not used
  #checkov:skip=CKV_AWS_144:a second region is a decision about costs; the cluster reads and writes one bucket
  #checkov:skip=CKV2_AWS_62:nobody is to be told of objects; events would be billed
  bucket        = var.bucket
  force_destroy = var.force_destroy
  tags          = merge(var.tags, { Name = var.bucket })
}

# Off on purpose: objects are written once under a name of their own and deleted when nothing needs
# them; old versions would only be stored, and paid for, a second time.
resource "aws_s3_bucket_versioning" "this" {
  bucket = aws_s3_bucket.this.id

  versioning_configuration {
    status = "Disabled"
  }
}

resource "aws_s3_bucket_ownership_controls" "this" {
  bucket = aws_s3_bucket.this.id

  rule {
    object_ownership = "BucketOwnerEnforced"
  }
}

resource "aws_s3_bucket_public_access_block" "this" {
  bucket                  = aws_s3_bucket.this.id
  block_public_acls       = true
  block_public_policy     = true
  ignore_public_acls      = true
  restrict_public_buckets = true
}

resource "aws_s3_bucket_server_side_encryption_configuration" "this" {
  bucket = aws_s3_bucket.this.id

  rule {
    bucket_key_enabled = true

    apply_server_side_encryption_by_default {
      sse_algorithm     = "aws:kms"
      kms_master_key_id = local.kms_key_arn
    }
  }
}

# The only rule: nothing but Lakehead may delete objects. A running upload lasts minutes, not days.
resource "aws_s3_bucket_lifecycle_configuration" "this" {
  bucket = aws_s3_bucket.this.id

  rule {
    id     = "abort-multipart-uploads"
    status = "Enabled"

    filter {}

    abort_incomplete_multipart_upload {
      days_after_initiation = var.abort_multipart_days
    }
  }
}

resource "aws_s3_bucket_policy" "this" {
  bucket     = aws_s3_bucket.this.id
  policy     = local.tls_only_policy_json
  depends_on = [aws_s3_bucket_public_access_block.this]
}

resource "aws_s3_bucket_logging" "this" {
  count         = var.access_log_bucket == null ? 0 : 1
  bucket        = aws_s3_bucket.this.id
  target_bucket = var.access_log_bucket
  target_prefix = "${var.name}/"
}

# S3 Express lies in one zone, which its bucket's name says.
data "aws_availability_zone" "express" {
  count = var.express_zone == null ? 0 : 1
  name  = var.express_zone

  lifecycle {
    postcondition {
      condition     = contains(var.express_zone_ids, self.zone_id)
      error_message = "S3 Express is not on offer in zone ${var.express_zone} (${self.zone_id}). Choose another zone, or wal_express = false; if AWS offers it there by now, add ${self.zone_id} to express_zone_ids."
    }
  }
}

# Encrypted by S3's own key. Nothing here lasts longer than the log: it is uploaded, then deleted.
resource "aws_s3_directory_bucket" "wal" {
  count         = length(data.aws_availability_zone.express)
  bucket        = "${aws_s3_bucket.this.bucket}-wal--${data.aws_availability_zone.express[0].zone_id}--x-s3"
  force_destroy = var.force_destroy

  location {
    name = data.aws_availability_zone.express[0].zone_id
  }
}
