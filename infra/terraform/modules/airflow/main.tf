# A role for the DAGs' jobs, the connection as a parameter that Airflow's Systems Manager backend
# finds, and (host.tf) an instance that runs Airflow. Jobs work on the bucket as brokers do; none
# needs EC2.

locals {
  bucket_arn = "arn:${data.aws_partition.current.partition}:s3:::${var.bucket}"
  parameter  = "/airflow/connections/${replace(var.name, "-", "_")}_default"

  first_server   = split(",", var.bootstrap_servers)[0]
  connection_uri = "lakehead://${local.first_server}/?path=${urlencode(var.store)}"

  ec2      = "ec2.${data.aws_partition.current.dns_suffix}"
  services = setunion(var.services, var.host == null ? [] : [local.ec2])

  airflow_policy_json = jsonencode({
    Version   = "2012-10-17"
    Statement = concat(local.job_statements, [for statement in local.host_statements : statement if var.host != null], local.package_key_statements, [for statement in local.node_key_statements : statement if var.node_keys != null], [for statement in local.session_statements : statement if try(var.host.session_manager, false)])
  })

  job_statements = [
    {
      Sid      = "TopicsAndTables"
      Effect   = "Allow"
      Action   = ["s3:GetObject", "s3:PutObject", "s3:DeleteObject", "s3:AbortMultipartUpload"]
      Resource = ["${local.bucket_arn}/${var.prefix}/*", "${local.bucket_arn}/${var.tables_prefix}/*"]
    },
    {
      Sid      = "Listing"
      Effect   = "Allow"
      Action   = ["s3:ListBucket", "s3:ListBucketMultipartUploads"]
      Resource = local.bucket_arn
    },
    {
      Sid       = "KeyThroughS3"
      Effect    = "Allow"
      Action    = ["kms:GenerateDataKey", "kms:Decrypt"]
      Resource  = var.kms_key_arn
      Condition = { StringEquals = { "kms:ViaService" = "s3.${data.aws_region.current.name}.${data.aws_partition.current.dns_suffix}" } }
    },
    # Objects keep the key that they were written with. So what may be read does not hang on a list of
    # keys, which can be too short, but on the bucket, which S3 names to KMS with every object.
    {
      Sid      = "EarlierKeysThroughS3"
      Effect   = "Allow"
      Action   = ["kms:GenerateDataKey", "kms:Decrypt"]
      Resource = "arn:${data.aws_partition.current.partition}:kms:${data.aws_region.current.name}:*:key/*"
      Condition = {
        StringEquals = { "kms:ViaService" = "s3.${data.aws_region.current.name}.${data.aws_partition.current.dns_suffix}" }
        StringLike   = { "kms:EncryptionContext:aws:s3:arn" = [local.bucket_arn, "${local.bucket_arn}/*"] }
      }
    },
    {
      Sid      = "Connection"
      Effect   = "Allow"
      Action   = ["ssm:GetParameter"]
      Resource = "arn:${data.aws_partition.current.partition}:ssm:${data.aws_region.current.name}:${data.aws_caller_identity.current.account_id}:parameter${local.parameter}"
    },
  ]
}

locals {
  # Jobs read and rewrite objects as nodes do, which use these keys themselves and not through S3 (storage/encryption/kms_keys.py). The context is the
  # cluster's, so a key that several clusters have opens the data of this one.
  node_key_statements = [
    {
      Sid       = "WrapDataKeys"
      Effect    = "Allow"
      Action    = ["kms:GenerateDataKey"]
      Resource  = try(var.node_keys.current, "none")
      Condition = { StringEquals = { "kms:EncryptionContext:lakehead:cluster" = try(var.node_keys.cluster, "none") } }
    },
    {
      Sid       = "UnwrapDataKeys"
      Effect    = "Allow"
      Action    = ["kms:Decrypt"]
      Resource  = try(var.node_keys.all, [])
      Condition = { StringEquals = { "kms:EncryptionContext:lakehead:cluster" = try(var.node_keys.cluster, "none") } }
    },
  ]
}

data "aws_partition" "current" {}

data "aws_region" "current" {}

data "aws_caller_identity" "current" {}

# The address holds no secret: workers come to the bucket by their role.
resource "aws_ssm_parameter" "connection" {
  #checkov:skip=CKV2_AWS_34:an address and no secret
  name        = local.parameter
  description = "Airflow's connection to the Lakehead cluster ${var.name}"
  type        = "String"
  value       = local.connection_uri
  tags        = var.tags
}

resource "aws_iam_role" "airflow" {
  name_prefix = "${var.name}-airflow-"
  description = "Airflow beside the Lakehead cluster ${var.name} in ${var.bucket}"
  tags        = var.tags

  assume_role_policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Effect    = "Allow"
      Principal = { Service = sort(local.services) }
      Action    = "sts:AssumeRole"
      # A service that says for whom it comes, as most do, comes for this account only. EC2 does not say.
      Condition = { StringEqualsIfExists = { "aws:SourceAccount" = data.aws_caller_identity.current.account_id } }
    }]
  })
}

resource "aws_iam_role_policy" "airflow" {
  name   = "lakehead"
  role   = aws_iam_role.airflow.id
  policy = local.airflow_policy_json
}

resource "aws_iam_instance_profile" "airflow" {
  count       = contains(local.services, local.ec2) ? 1 : 0
  name_prefix = "${var.name}-airflow-"
  role        = aws_iam_role.airflow.name
  tags        = var.tags
}
