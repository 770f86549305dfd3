# Spark reads the cluster's prefix in place and writes tables beside it. It never writes to the prefix.

locals {
  partition  = data.aws_partition.current.partition
  account    = data.aws_caller_identity.current.account_id
  bucket_arn = "arn:${local.partition}:s3:::${var.bucket}"
  glue_arn   = "arn:${local.partition}:glue:${data.aws_region.current.name}:${local.account}"
  role_arns  = "arn:${local.partition}:iam::${local.account}:role/${local.role_prefix}*"

  role_prefix = "${var.name}-spark-"

  lake_statements = [
    {
      Sid      = "ReadTopics"
      Effect   = "Allow"
      Action   = ["s3:GetObject"]
      Resource = "${local.bucket_arn}/${var.prefix}/*"
    },
    {
      Sid      = "WriteTables"
      Effect   = "Allow"
      Action   = ["s3:GetObject", "s3:PutObject", "s3:DeleteObject", "s3:AbortMultipartUpload"]
      Resource = "${local.bucket_arn}/${var.tables_prefix}/*"
    },
    # Unity Catalog and EMR look for the bucket's Region before they read it.
    {
      Sid      = "Listing"
      Effect   = "Allow"
      Action   = ["s3:ListBucket", "s3:GetBucketLocation"]
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
      Resource = "arn:${local.partition}:kms:${data.aws_region.current.name}:*:key/*"
      Condition = {
        StringEquals = { "kms:ViaService" = "s3.${data.aws_region.current.name}.${data.aws_partition.current.dns_suffix}" }
        StringLike   = { "kms:EncryptionContext:aws:s3:arn" = [local.bucket_arn, "${local.bucket_arn}/*"] }
      }
    },
  ]
  # Spark decrypts what nodes encrypted, and writes nothing that they would read.
  node_key_statements = [
    {
      Sid       = "UnwrapDataKeys"
      Effect    = "Allow"
      Action    = ["kms:Decrypt"]
      Resource  = try(var.node_keys.all, [])
      Condition = { StringEquals = { "kms:EncryptionContext:lakehead:cluster" = try(var.node_keys.cluster, "none") } }
    },
  ]
  glue_statements = [
    {
      Sid    = "Tables"
      Effect = "Allow"
      Action = [
        "glue:GetDatabase", "glue:GetTable", "glue:GetTables", "glue:CreateTable", "glue:UpdateTable", "glue:DeleteTable",
        "glue:GetPartition", "glue:GetPartitions", "glue:BatchGetPartition", "glue:CreatePartition", "glue:BatchCreatePartition",
        "glue:UpdatePartition", "glue:BatchUpdatePartition", "glue:DeletePartition", "glue:BatchDeletePartition",
        "glue:GetTableVersion", "glue:GetTableVersions", "glue:GetUserDefinedFunction", "glue:GetUserDefinedFunctions",
      ]
      Resource = concat(["${local.glue_arn}:catalog"], [for kind in ["database/%s", "table/%s/*", "userDefinedFunction/%s/*"] : "${local.glue_arn}:${format(kind, coalesce(var.glue_database, "none"))}"])
    },
    {
      # Spark's Glue catalog looks for its default database whenever a session begins, and for its functions.
      Sid      = "DefaultDatabase"
      Effect   = "Allow"
      Action   = ["glue:GetDatabase", "glue:GetUserDefinedFunctions"]
      Resource = ["${local.glue_arn}:catalog", "${local.glue_arn}:database/default", "${local.glue_arn}:userDefinedFunction/default/*"]
    },
    {
      # A list of databases names them all. Their tables are another action.
      Sid      = "ListDatabases"
      Effect   = "Allow"
      Action   = ["glue:GetDatabases"]
      Resource = ["${local.glue_arn}:catalog", "${local.glue_arn}:database/*"]
    },
  ]
  # Unity Catalog takes no role that cannot take itself.
  databricks_statements = [
    {
      Sid      = "TakeItself"
      Effect   = "Allow"
      Action   = ["sts:AssumeRole"]
      Resource = local.role_arns
    },
  ]

  spark_policy_json = jsonencode({
    Version = "2012-10-17"
    Statement = concat(
      local.lake_statements,
      [for statement in local.node_key_statements : statement if var.node_keys != null],
      [for statement in local.glue_statements : statement if var.glue_database != null],
      [for statement in local.databricks_statements : statement if var.databricks != null],
    )
  })

  # A service that says for whom it comes, as most do, comes for this account only. EC2 does not say.
  trust_statements = concat(
    [for services in [var.services] : {
      Sid       = "Services"
      Effect    = "Allow"
      Principal = { Service = services }
      Action    = "sts:AssumeRole"
      Condition = { StringEqualsIfExists = { "aws:SourceAccount" = local.account } }
    } if length(services) > 0],
    [for roles in [var.role_arns] : { Sid = "Roles", Effect = "Allow", Principal = { AWS = roles }, Action = "sts:AssumeRole" } if length(roles) > 0],
  )
  # The role does not exist yet when its trust is written, so it is named by a condition.
  databricks_trust = [for databricks in var.databricks == null ? [] : [var.databricks] : [
    {
      Sid       = "Databricks"
      Effect    = "Allow"
      Principal = { AWS = databricks.role_arn }
      Action    = "sts:AssumeRole"
      Condition = { StringEquals = { "sts:ExternalId" = databricks.external_id } }
    },
    {
      Sid       = "Itself"
      Effect    = "Allow"
      Principal = { AWS = "arn:${local.partition}:iam::${local.account}:root" }
      Action    = "sts:AssumeRole"
      Condition = {
        StringEquals = { "sts:ExternalId" = databricks.external_id }
        ArnLike      = { "aws:PrincipalArn" = local.role_arns }
      }
    },
  ]]
  trust_json = jsonencode({
    Version = "2012-10-17"
    Statement = concat(
      local.trust_statements,
      flatten(local.databricks_trust),
    )
  })
}

data "aws_partition" "current" {}

data "aws_region" "current" {}

data "aws_caller_identity" "current" {}

resource "aws_iam_role" "spark" {
  name_prefix        = local.role_prefix
  description        = "Spark beside the Lakehead cluster ${var.name} in ${var.bucket}"
  assume_role_policy = local.trust_json
  tags               = var.tags
}

resource "aws_iam_role_policy" "spark" {
  name   = "lakehead"
  role   = aws_iam_role.spark.id
  policy = local.spark_policy_json
}

resource "aws_iam_instance_profile" "spark" {
  count       = contains(var.services, "ec2.${data.aws_partition.current.dns_suffix}") ? 1 : 0
  name_prefix = local.role_prefix
  role        = aws_iam_role.spark.name
  tags        = var.tags
}

resource "aws_glue_catalog_database" "tables" {
  count        = var.glue_database == null ? 0 : 1
  name         = var.glue_database
  description  = "Tables of the Lakehead cluster ${var.name}"
  location_uri = "s3://${var.bucket}/${var.tables_prefix}/"
  tags         = var.tags
}
