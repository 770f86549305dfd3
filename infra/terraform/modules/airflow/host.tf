# One instance with all parts of Airflow. It holds nothing that cannot be made again but the history
# of runs: jobs, connection and Variables come with user data.

locals {
  host           = var.host == null ? toset([]) : toset(["airflow"])
  wheel          = var.host == null ? "s3://none/none" : var.host.lakehead_wheel
  package_folder = "${trimsuffix(local.wheel, "/${basename(local.wheel)}")}/airflow"
  package_place  = split("/", trimprefix(local.package_folder, "s3://"))
  package = {
    bucket_arn = "arn:${data.aws_partition.current.partition}:s3:::${local.package_place[0]}"
    keys       = "${join("/", slice(local.package_place, 1, length(local.package_place)))}/*"
  }
  secret_name = "${var.name}/airflow"

  host_statements = [
    {
      Sid      = "PackageObjects"
      Effect   = "Allow"
      Action   = ["s3:GetObject"]
      Resource = "${local.package.bucket_arn}/${local.package.keys}"
    },
    {
      Sid       = "PackageListing"
      Effect    = "Allow"
      Action    = ["s3:ListBucket"]
      Resource  = local.package.bucket_arn
      Condition = { StringLike = { "s3:prefix" = local.package.keys } }
    },
    {
      Sid      = "TellPassword"
      Effect   = "Allow"
      Action   = ["secretsmanager:PutSecretValue"]
      Resource = "arn:${data.aws_partition.current.partition}:secretsmanager:${data.aws_region.current.name}:${data.aws_caller_identity.current.account_id}:secret:${local.secret_name}-??????"
    },
    {
      Sid       = "KeyThroughSecrets"
      Effect    = "Allow"
      Action    = ["kms:GenerateDataKey", "kms:Decrypt"]
      Resource  = var.kms_key_arn
      Condition = { StringEquals = { "kms:ViaService" = "secretsmanager.${data.aws_region.current.name}.${data.aws_partition.current.dns_suffix}" } }
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

  package_key_statements = [for arn in var.host == null ? [] : compact([var.host.package_kms_key_arn]) : {
    Sid       = "PackageKey"
    Effect    = "Allow"
    Action    = ["kms:Decrypt"]
    Resource  = arn
    Condition = { StringEquals = { "kms:ViaService" = "s3.${var.host.package_region}.${data.aws_partition.current.dns_suffix}" } }
  }]

  # Systemd takes what stands between single quotes as it is.
  environment = var.host == null ? {} : {
    AIRFLOW_HOME                                      = "/var/lib/airflow"
    AIRFLOW_CONN_LAKEHEAD_DEFAULT                     = local.connection_uri
    AIRFLOW_VAR_LAKEHEAD_DAGS                         = replace(var.host.dags, "'", "\\u0027")
    AIRFLOW__API__BASE_URL                            = "http://127.0.0.1:${var.host.port}"
    AIRFLOW__API__HOST                                = "0.0.0.0"
    AIRFLOW__API__PORT                                = var.host.port
    AIRFLOW__API__WORKERS                             = 1
    AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION        = "False"
    AIRFLOW__CORE__DAGS_FOLDER                        = "/var/lib/airflow/dags"
    AIRFLOW__CORE__EXECUTION_API_SERVER_URL           = "http://127.0.0.1:${var.host.port}/execution/"
    AIRFLOW__CORE__LOAD_EXAMPLES                      = "False"
    AIRFLOW__CORE__PARALLELISM                        = var.host.parallelism
    AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE = "/var/lib/airflow/passwords.json"
    AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS          = "admin:admin"
    AWS_REGION                                        = data.aws_region.current.name
    HOME                                              = "/var/lib/airflow"
    LAKEHEAD_PATH                                     = var.store
  }

  user_data = var.host == null ? null : templatefile("${path.module}/user_data.yaml.tftpl", {
    environment    = jsonencode(join("", [for name, value in local.environment : "${name}='${value}'\n"]))
    hostname       = "${var.name}-airflow"
    package_folder = local.package_folder
    secret         = local.secret_name
    wheel_basename = basename(local.wheel)
    digest         = var.host.package_sha256
    region         = var.host.package_region
  })

  in_rules  = var.host == null ? {} : var.host.client_cidrs
  dns_rules = merge([for protocol in ["tcp", "udp"] : { for label, cidr in try(var.host.dns_cidrs, {}) : "${protocol}-${label}" => { protocol = protocol, cidr = cidr } }]...)
}

data "aws_ec2_managed_prefix_list" "s3" {
  for_each = local.host
  name     = "com.amazonaws.${data.aws_region.current.name}.s3"
}

data "aws_ec2_instance_type" "host" {
  for_each      = local.host
  instance_type = var.host.instance_type

  lifecycle {
    postcondition {
      condition     = contains(self.supported_architectures, var.host.architecture)
      error_message = "airflow_host.instance_type ${var.host.instance_type} is not of the brokers' architecture (${var.host.architecture}), for which the image and the packages are."
    }
    postcondition {
      condition     = self.memory_size >= 4096
      error_message = "airflow_host.instance_type ${var.host.instance_type} has ${self.memory_size} MiB: Airflow's four parts and its tasks want 4 GiB, better 8."
    }
  }
}

# Empty: the host makes the password at its first start and puts it here, so that it is never in
# Terraform's state. Nothing is lost with it, so the name is free again at once.
resource "aws_secretsmanager_secret" "password" {
  #checkov:skip=CKV2_AWS_57:the host makes the password when it is made; Airflow reads it from a file
  for_each                = local.host
  name                    = local.secret_name
  description             = "Lakehead ${var.name}: Airflow's administrator"
  kms_key_id              = var.kms_key_arn
  recovery_window_in_days = 0
  tags                    = var.tags
}

resource "aws_security_group" "host" {
  for_each    = local.host
  name_prefix = "${var.name}-airflow-"
  description = "Airflow beside the Lakehead cluster ${var.name}"
  vpc_id      = var.host.vpc_id
  tags        = merge(var.tags, { Name = "${var.name}-airflow" })

  # A group that interfaces have cannot be deleted: one in its place comes first.
  lifecycle {
    create_before_destroy = true
  }
}

resource "aws_vpc_security_group_ingress_rule" "page" {
  for_each          = local.in_rules
  security_group_id = aws_security_group.host["airflow"].id
  description       = "Airflow's page from ${each.value}"
  ip_protocol       = "tcp"
  from_port         = var.host.port
  to_port           = var.host.port
  cidr_ipv4         = each.value
  tags              = var.tags
}

resource "aws_vpc_security_group_ingress_rule" "page_groups" {
  for_each                     = var.host == null ? {} : var.host.client_security_group_ids
  security_group_id            = aws_security_group.host["airflow"].id
  description                  = "Airflow's page from group ${each.key}"
  ip_protocol                  = "tcp"
  from_port                    = var.host.port
  to_port                      = var.host.port
  referenced_security_group_id = each.value
  tags                         = var.tags
}

resource "aws_vpc_security_group_egress_rule" "dns" {
  for_each          = var.host == null ? {} : local.dns_rules
  security_group_id = aws_security_group.host["airflow"].id
  description       = "DNS by ${each.value.protocol} at ${each.value.cidr}"
  ip_protocol       = each.value.protocol
  from_port         = 53
  to_port           = 53
  cidr_ipv4         = each.value.cidr
  tags              = var.tags
}

resource "aws_vpc_security_group_egress_rule" "s3" {
  for_each          = local.host
  security_group_id = aws_security_group.host[each.key].id
  description       = "S3 by the gateway endpoint"
  ip_protocol       = "tcp"
  from_port         = 443
  to_port           = 443
  prefix_list_id    = data.aws_ec2_managed_prefix_list.s3[each.key].id
  tags              = var.tags
}

resource "aws_vpc_security_group_egress_rule" "https" {
  for_each          = var.host == null ? {} : var.host.https_egress_cidrs
  security_group_id = aws_security_group.host["airflow"].id
  description       = "HTTPS to ${each.key}"
  ip_protocol       = "tcp"
  from_port         = 443
  to_port           = 443
  cidr_ipv4         = each.value
  tags              = var.tags
}

resource "aws_vpc_security_group_egress_rule" "brokers" {
  for_each                     = local.host
  security_group_id            = aws_security_group.host[each.key].id
  description                  = "brokers"
  ip_protocol                  = "tcp"
  from_port                    = var.host.kafka_ports.first
  to_port                      = var.host.kafka_ports.last
  referenced_security_group_id = var.host.broker_security_group_id
  tags                         = var.tags
}

# Stays when the instance is replaced, and with it the page's address. An interface that was there
# before its instance never gets a public address, whatever the subnet gives to others.
resource "aws_network_interface" "airflow" {
  for_each        = local.host
  subnet_id       = var.host.subnet_id
  security_groups = [aws_security_group.host[each.key].id]
  description     = "Airflow of ${var.name}"
  tags            = merge(var.tags, { Name = "${var.name}-airflow" })
}

resource "aws_instance" "airflow" {
  #checkov:skip=CKV_AWS_126:status checks come each minute without it, and CPU every five minutes is enough here
  for_each                    = local.host
  ami                         = var.host.ami_id
  instance_type               = data.aws_ec2_instance_type.host[each.key].instance_type
  iam_instance_profile        = aws_iam_instance_profile.airflow[0].name
  user_data                   = local.user_data
  user_data_replace_on_change = true
  ebs_optimized               = true

  network_interface {
    device_index         = 0
    network_interface_id = aws_network_interface.airflow[each.key].id
  }

  metadata_options {
    http_endpoint               = "enabled"
    http_tokens                 = "required"
    http_put_response_hop_limit = 1
  }

  root_block_device {
    volume_type = "gp3"
    volume_size = var.host.root_gib
    encrypted   = true
    kms_key_id  = var.host.volume_kms_key_arn
  }

  tags = merge(var.tags, { Name = "${var.name}-airflow" })

  depends_on = [aws_iam_role_policy.airflow, aws_secretsmanager_secret.password]

  lifecycle {
    precondition {
      condition     = length(base64encode(local.user_data)) <= 21844 # of 16,383 bytes; length counts characters
      error_message = "User data of Airflow is longer than EC2's 16 KiB. Make airflow_host.dags shorter."
    }
  }
}
