# What a broker may do: its prefix, its key through S3, its own package, and with a block WAL the
# volumes of its cluster.

locals {
  # Names of clusters may meet in an account; names of buckets are one cluster's alone.
  of_cluster    = { "aws:ResourceTag/lakehead:cluster" = var.name, "aws:ResourceTag/lakehead:bucket" = var.bucket }
  bucket_arn    = "arn:${data.aws_partition.current.partition}:s3:::${var.bucket}"
  wheel_from_s3 = startswith(var.lakehead_wheel, "s3://")
  wheel_place   = local.wheel_from_s3 ? split("/", trimprefix(var.lakehead_wheel, "s3://")) : ["none"]
  wheel_bucket  = "arn:${data.aws_partition.current.partition}:s3:::${local.wheel_place[0]}"
  wheel_folder  = join("/", slice(local.wheel_place, 1, max(1, length(local.wheel_place) - 1)))
  wheel_keys    = local.wheel_folder == "" ? "*" : "${local.wheel_folder}/*"

  store_statements = [
    {
      Sid      = "ClusterObjects"
      Effect   = "Allow"
      Action   = ["s3:GetObject", "s3:PutObject", "s3:DeleteObject", "s3:AbortMultipartUpload"]
      Resource = "${local.bucket_arn}/${var.prefix}/*"
    },
    {
      Sid      = "ClusterListing"
      Effect   = "Allow"
      Action   = ["s3:ListBucket", "s3:ListBucketMultipartUploads"]
      Resource = local.bucket_arn
    },
    # Outside of the prefix, so that no broker changes what all of them start with.
    {
      Sid      = "SettingsObject"
      Effect   = "Allow"
      Action   = ["s3:GetObject"]
      Resource = ["${local.bucket_arn}/${local.settings_key}", "${local.bucket_arn}/${local.agent_key}"]
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
  ]
  # Its place in the state: an attribute of provider 6 is an error where provider 5 looks at the source.
  package_bucket = one(data.aws_s3_bucket.package)
  package_region = local.package_bucket == null ? data.aws_region.current.name : try(local.package_bucket.bucket_region, local.package_bucket.region)
  package_key_statements = [
    {
      Sid       = "PackageKey"
      Effect    = "Allow"
      Action    = ["kms:Decrypt"]
      Resource  = coalesce(var.package_kms_key_arn, "none")
      Condition = { StringEquals = { "kms:ViaService" = "s3.${local.package_region}.${data.aws_partition.current.dns_suffix}" } }
    },
  ]
  wheel_statements = [
    {
      Sid      = "PackageObjects"
      Effect   = "Allow"
      Action   = ["s3:GetObject"]
      Resource = "${local.wheel_bucket}/${local.wheel_keys}"
    },
    {
      Sid       = "PackageListing"
      Effect    = "Allow"
      Action    = ["s3:ListBucket"]
      Resource  = local.wheel_bucket
      Condition = { StringLike = { "s3:prefix" = local.wheel_keys } }
    },
  ]
  ec2_arn = "arn:${data.aws_partition.current.partition}:ec2:${data.aws_region.current.name}:${data.aws_caller_identity.current.account_id}"
  volume_statements = [
    # EC2 knows no narrower permission for these two.
    {
      Sid      = "FindVolumes"
      Effect   = "Allow"
      Action   = ["ec2:DescribeVolumes", "ec2:DescribeInstances"]
      Resource = "*"
    },
    # A volume that several instances can have is never detached by a broker. One that only one can have is
    # taken from an instance that is terminated, which may have lost its tags: the volume's decide.
    {
      Sid       = "MoveVolumes"
      Effect    = "Allow"
      Action    = ["ec2:AttachVolume"]
      Resource  = ["${local.ec2_arn}:volume/*", "${local.ec2_arn}:instance/*"]
      Condition = { StringEquals = local.of_cluster }
    },
    {
      Sid       = "FreeVolumes"
      Effect    = "Allow"
      Action    = ["ec2:DetachVolume"]
      Resource  = ["${local.ec2_arn}:volume/*"]
      Condition = { StringEquals = local.of_cluster }
    },
    {
      Sid      = "FromWhereverTheyAre"
      Effect   = "Allow"
      Action   = ["ec2:DetachVolume"]
      Resource = ["${local.ec2_arn}:instance/*"]
    },
    # To attach an encrypted volume, EC2 takes a grant of its key in the name of who attaches. A volume
    # keeps its key, so it may be an earlier one, or the account's own for EBS; which volumes there are
    # to attach, the statement above says.
    {
      Sid      = "GrantForVolumes"
      Effect   = "Allow"
      Action   = ["kms:CreateGrant"]
      Resource = "arn:${data.aws_partition.current.partition}:kms:${data.aws_region.current.name}:*:key/*"
      Condition = {
        Bool = { "kms:GrantIsForAWSResource" = "true" }
        StringEquals = {
          "kms:ViaService"          = "ec2.${data.aws_region.current.name}.${data.aws_partition.current.dns_suffix}"
          "kms:GrantConstraintType" = "EncryptionContextSubset"
        }
      }
    },
  ]

  # A directory bucket gives out sessions, and asks for no more after that.
  express_statements = [
    {
      Sid      = "ExpressLog"
      Effect   = "Allow"
      Action   = ["s3express:CreateSession"]
      Resource = "arn:${data.aws_partition.current.partition}:s3express:${data.aws_region.current.name}:${data.aws_caller_identity.current.account_id}:bucket/${coalesce(var.wal_bucket, "none")}"
    },
  ]

  # KMS gets the secret's ARN as context from Secrets Manager, so that the key opens no other secret.
  secret_statements = [
    {
      Sid      = "Secrets"
      Effect   = "Allow"
      Action   = ["secretsmanager:GetSecretValue"]
      Resource = values(var.secret_arns)
    },
    {
      Sid      = "KeyThroughSecrets"
      Effect   = "Allow"
      Action   = ["kms:Decrypt"]
      Resource = var.kms_key_arn
      Condition = {
        StringEquals = {
          "kms:ViaService"                  = "secretsmanager.${data.aws_region.current.name}.${data.aws_partition.current.dns_suffix}"
          "kms:EncryptionContext:SecretARN" = values(var.secret_arns)
        }
      }
    },
  ]

  # Nodes use these keys themselves, and not through S3 (storage/encryption/kms_keys.py). The context is the
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

  session_statements = [
    # What a session takes, by AWS's "Adding Session Manager permissions to an existing IAM role". AWS's own
    # policy AmazonSSMManagedInstanceCore reads every parameter of the account besides.
    {
      Sid      = "SessionManager"
      Effect   = "Allow"
      Action   = ["ssm:UpdateInstanceInformation", "ssmmessages:CreateControlChannel", "ssmmessages:CreateDataChannel", "ssmmessages:OpenControlChannel", "ssmmessages:OpenDataChannel"]
      Resource = "*"
    },
  ]

  log_statements = [
    # The agent makes its streams. Groups are there, and it changes nothing of them; metrics are log events.
    {
      Sid      = "ShipLogs"
      Effect   = "Allow"
      Action   = ["logs:CreateLogStream", "logs:PutLogEvents"]
      Resource = [for group in var.log_groups : "arn:${data.aws_partition.current.partition}:logs:${data.aws_region.current.name}:${data.aws_caller_identity.current.account_id}:log-group:${group}:*"]
    },
  ]

  broker_policy_json = jsonencode({
    Version = "2012-10-17"
    Statement = concat(
      local.store_statements,
      [for statement in local.wheel_statements : statement if local.wheel_from_s3],
      [for statement in local.package_key_statements : statement if local.wheel_from_s3 && var.package_kms_key_arn != null],
      [for statement in local.volume_statements : statement if var.wal_mode == "gp3" || (var.wal_mode != "object" && !contains(["FreeVolumes", "FromWhereverTheyAre"], statement.Sid))],
      [for statement in local.secret_statements : statement if length(var.secret_arns) > 0],
      [for statement in local.node_key_statements : statement if var.node_keys != null],
      [for statement in local.express_statements : statement if var.wal_bucket != null],
      [for statement in local.session_statements : statement if var.session_manager],
      [for statement in local.log_statements : statement if length(var.log_groups) > 0],
    )
  })
}

data "aws_partition" "current" {}

data "aws_caller_identity" "current" {}

resource "aws_iam_role" "broker" {
  name_prefix = "${var.name}-broker-"
  description = "Lakehead brokers of ${var.name}"
  tags        = var.tags

  assume_role_policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Effect    = "Allow"
      Principal = { Service = "ec2.${data.aws_partition.current.dns_suffix}" }
      Action    = "sts:AssumeRole"
    }]
  })
}

resource "aws_iam_role_policy" "broker" {
  name   = "lakehead"
  role   = aws_iam_role.broker.id
  policy = local.broker_policy_json
}

resource "aws_iam_instance_profile" "broker" {
  name_prefix = "${var.name}-broker-"
  role        = aws_iam_role.broker.name
  tags        = var.tags
}
