# An image of the brokers' hosts: Amazon Linux 2023 with the package installed, by the script that hosts
# run. With its id as ami_id and the same package, hosts of infra/terraform have nothing to install.

packer {
  required_version = ">= 1.9.0"

  required_plugins {
    amazon = {
      source  = "github.com/hashicorp/amazon"
      version = ">= 1.3.0"
    }
  }
}

variable "region" {
  description = "Region of the image."
  type        = string

  validation {
    condition     = can(regex("^[a-z]{2}(-[a-z]+)+-[0-9]$", var.region))
    error_message = "Variable region looks like us-east-1."
  }
}

variable "lakehead_wheel" {
  description = "s3:// address of Lakehead's wheel, in a folder with all that it needs, or https:// address: lakehead_wheel of the module."
  type        = string

  validation {
    condition     = can(regex("^(s3|https)://[A-Za-z0-9._-]+/[A-Za-z0-9._/+%-]*lakehead-[A-Za-z0-9._+%-]+\\.whl$", var.lakehead_wheel))
    error_message = "Variable lakehead_wheel is an s3:// or https:// address that ends in lakehead-VERSION-py3-none-any.whl."
  }
}

variable "package_sha256" {
  description = "SHA-256 of SHA256SUMS in the wheel's folder, or of a wheel by https: package_sha256 of the module."
  type        = string

  validation {
    condition     = can(regex("^[0-9a-f]{64}$", var.package_sha256))
    error_message = "Variable package_sha256 is 64 hexadecimal digits, as `sha256sum SHA256SUMS` prints them."
  }
}

variable "package_region" {
  description = "Region of the wheel's bucket; empty: that of the image."
  type        = string
  default     = ""
}

variable "package_kms_key_arn" {
  description = "KMS key of the wheel's bucket, where it has one of its own; empty: it has none."
  type        = string
  default     = ""

  validation {
    condition     = var.package_kms_key_arn == "" || can(regex("^arn:aws[a-z-]*:kms:[a-z0-9-]+:[0-9]{12}:key/.+$", var.package_kms_key_arn))
    error_message = "Variable package_kms_key_arn is the ARN of a key, not of an alias."
  }
}

variable "instance_type" {
  description = "Instance on which the image is made. Its architecture is the image's, and that of the package: choose a Graviton type for arm64."
  type        = string
  default     = "m7i.large"
}

variable "architecture" {
  description = "Architecture of instance_type and of the package: x86_64 or arm64."
  type        = string
  default     = "x86_64"

  validation {
    condition     = contains(["x86_64", "arm64"], var.architecture)
    error_message = "Variable architecture is x86_64 or arm64."
  }
}

variable "subnet_id" {
  description = "Subnet for that instance, with a way to S3."
  type        = string

  validation {
    condition     = can(regex("^subnet-[0-9a-z]+$", var.subnet_id))
    error_message = "Variable subnet_id looks like subnet-0123abcd."
  }
}

variable "ssh_interface" {
  description = "How Packer enters the instance: session_manager (its plugin beside Packer, Systems Manager reachable from the subnet) or private_ip (from inside the VPC)."
  type        = string
  default     = "session_manager"

  validation {
    condition     = contains(["session_manager", "private_ip"], var.ssh_interface)
    error_message = "Variable ssh_interface is session_manager or private_ip: the instance has no public address."
  }
}

variable "kms_key_id" {
  description = "KMS key of the image; empty: the account's own of EBS. With one of yours, whatever starts instances of the image (an auto scaling group's service-linked role) needs a grant of it."
  type        = string
  default     = ""
}

variable "cloudwatch_agent" {
  description = "Whether the image has the CloudWatch agent installed, for hosts with cloudwatch."
  type        = bool
  default     = false
}

# The image that the module takes without ami_id.
data "amazon-parameterstore" "al2023" {
  name   = "/aws/service/ami-amazon-linux-latest/al2023-ami-kernel-default-${var.architecture}"
  region = var.region
}

locals {
  made       = formatdate("YYYYMMDD-hhmm", timestamp())
  partition  = can(regex("^cn-", var.region)) ? "aws-cn" : can(regex("^us-gov-", var.region)) ? "aws-us-gov" : "aws"
  from_s3    = can(regex("^s3://", var.lakehead_wheel))
  bucket_arn = "arn:${local.partition}:s3:::${split("/", trimprefix(var.lakehead_wheel, "s3://"))[0]}"

  # As the policy of the brokers has it: what is installed is read, and no more.
  session = ["ssm:UpdateInstanceInformation", "ssmmessages:CreateControlChannel", "ssmmessages:CreateDataChannel", "ssmmessages:OpenControlChannel", "ssmmessages:OpenDataChannel"]
  statements = concat(
    !local.from_s3 ? [] : [{ actions = ["s3:GetObject", "s3:ListBucket"], resources = [local.bucket_arn, "${local.bucket_arn}/*"] }],
    var.package_kms_key_arn == "" ? [] : [{ actions = ["kms:Decrypt"], resources = [var.package_kms_key_arn] }],
    var.ssh_interface != "session_manager" ? [] : [{ actions = local.session, resources = ["*"] }],
  )
  tags = {
    Name                      = "lakehead-${local.made}"
    "lakehead:wheel"          = basename(var.lakehead_wheel)
    "lakehead:package-sha256" = var.package_sha256
    "lakehead:source-ami"     = data.amazon-parameterstore.al2023.value
  }
}

source "amazon-ebs" "host" {
  region                      = var.region
  source_ami                  = data.amazon-parameterstore.al2023.value
  instance_type               = var.instance_type
  subnet_id                   = var.subnet_id
  associate_public_ip_address = false
  ssh_username                = "ec2-user"
  ssh_interface               = var.ssh_interface
  ssh_clear_authorized_keys   = true

  ami_name        = "lakehead-${local.made}-${var.architecture}"
  ami_description = "Amazon Linux 2023 with Lakehead, ${basename(var.lakehead_wheel)}"
  imds_support    = "v2.0"
  encrypt_boot    = true
  kms_key_id      = var.kms_key_id
  tags            = local.tags
  snapshot_tags   = local.tags
  run_tags        = { Name = "lakehead-image" }
  run_volume_tags = { Name = "lakehead-image" }

  metadata_options {
    http_endpoint               = "enabled"
    http_tokens                 = "required"
    http_put_response_hop_limit = 1
  }

  dynamic "temporary_iam_instance_profile_policy_document" {
    for_each = length(local.statements) > 0 ? [local.statements] : []

    content {
      Version = "2012-10-17"

      dynamic "Statement" {
        for_each = temporary_iam_instance_profile_policy_document.value

        content {
          Effect   = "Allow"
          Action   = Statement.value.actions
          Resource = Statement.value.resources
        }
      }
    }
  }
}

build {
  sources = ["source.amazon-ebs.host"]

  provisioner "file" {
    source      = "${path.root}/../terraform/modules/brokers/lakehead-install"
    destination = "/tmp/lakehead-install"
  }

  provisioner "shell" {
    script          = "${path.root}/provision"
    execute_command = "sudo env {{ .Vars }} sh {{ .Path }}"

    environment_vars = [
      "LAKEHEAD_WHEEL=${var.lakehead_wheel}",
      "PACKAGE_SHA256=${var.package_sha256}",
      "PACKAGE_REGION=${var.package_region == "" ? var.region : var.package_region}",
      "CLOUDWATCH_AGENT=${var.cloudwatch_agent ? "yes" : ""}",
    ]
  }

  post-processor "manifest" {
    output = "${path.root}/manifest.json"
  }
}
