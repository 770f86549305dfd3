# A host is a slot: an address that stays (its network interface), a volume that stays (module wal),
# and an instance that may be replaced at any time.

locals {
  ami_id = var.ami_id == null ? nonsensitive(data.aws_ssm_parameter.al2023[0].insecure_value) : var.ami_id

  architecture = contains(data.aws_ec2_instance_type.this.supported_architectures, "arm64") ? "arm64" : "x86_64"

  # Of all hosts alike, in the bucket: a change of them is a change of that object, and of no instance.
  # An object WAL is there too, since its budget is one of them; a volume is a host's own.
  # The metrics pages are open to the groups that security lets in: Prometheus, load balancers' probes.
  settings = merge({ "ec2.notices" = "interruption", "metrics.host" = "0.0.0.0" }, var.settings, {
    "nodes"        = var.nodes_per_host
    "host"         = "0.0.0.0"
    "port"         = var.kafka_port
    "metrics.port" = var.metrics_port
    }, var.group_wal == null ? {} : { "ec2.notices" = "scaling" },
    local.shared_wal == null ? {} : { "wal" = local.shared_wal },
  )
  shared_wal = var.wal_mode != "object" ? null : one(distinct(concat(values(var.wal_uris), var.group_wal == null ? [] : [var.group_wal])))

  # Which host it is, and where its cluster is: in its user data, and the same for as long as it is there.
  shared_identity = {
    "data"  = "/var/lib/lakehead"
    "store" = "s3://${var.bucket}/${var.prefix}?region=${data.aws_region.current.name}"
  }
  identity = merge({
    for slot, host in var.slots : slot => merge(local.shared_identity, {
      "node.id"         = host.node_id
      "broker.rack"     = data.aws_availability_zone.each[host.zone].zone_id
      "host.id"         = "${var.name}-${slot}"
      "advertised.host" = aws_network_interface.host[slot].private_ip
    }, local.shared_wal == null ? { "wal" = var.wal_uris[slot] } : {})
    # What a slot's have beside, `lakehead slot claim` finds out.
  }, { for group in var.group_wal == null ? [] : ["group"] : group => local.shared_identity })

  # Names are quoted: host and host.id, wal and wal.size are names of their own, not tables.
  settings_toml    = join("", [for key, value in local.settings : "${jsonencode(key)} = ${jsonencode(value)}\n"])
  settings_version = substr(sha256(local.settings_toml), 0, 12)
  settings_key     = "${var.prefix}-settings/brokers.toml" # beside what brokers may write
  agent_key        = "${var.prefix}-settings/cloudwatch.jsonl"
  identity_toml = {
    for slot, identity in local.identity :
    slot => join("", [for key, value in identity : "${jsonencode(key)} = ${jsonencode(value)}\n"])
  }

  # What hosts run, by what each reports once its nodes serve: PREFIX/hosts/HOST/settings-VERSION.
  reports_prefix = "${var.prefix}/hosts/"
  settings_versions = {
    for key in data.aws_s3_objects.reports.keys :
    trimprefix(split("/", trimprefix(key, local.reports_prefix))[0], "${var.name}-") => reverse(split("-", key))[0]...
    if can(regex("/settings-[0-9a-f]+$", key))
  }

  # EBS gives a disk its volume's id as serial number.
  device_rule = "ACTION!=\"remove\", SUBSYSTEM==\"block\", ENV{DEVTYPE}==\"disk\", ATTRS{serial}==\"vol*\", PROGRAM=\"/usr/local/sbin/lakehead-is-data-disk %k\", GROUP=\"lakehead-wal\", MODE=\"0660\"\n"

  user_data = {
    for slot in keys(local.identity) : slot => templatefile("${path.module}/user_data.yaml.tftpl", {
      before_start = slot == "group" ? "/opt/lakehead/bin/lakehead slot claim --write /var/lib/lakehead/slot.env" : "/usr/bin/true"
      capabilities = var.wal_mode == "io2-multi-attach" ? "CAP_SYS_ADMIN" : ""
      hostname     = "${var.name}-${slot}"
      identity     = jsonencode(local.identity_toml[slot])
      settings     = "s3://${var.bucket}/${local.settings_key}"
      secrets      = length(var.secret_arns) == 0 ? "" : "--prefix ${var.name} --region ${data.aws_region.current.name} --admin ${var.first_admin}"
      cloudwatch   = "s3://${var.bucket}/${local.agent_key}"
      reports      = "s3://${var.bucket}/${trimsuffix(local.reports_prefix, "/")}"
      store_region = data.aws_region.current.name
      package      = jsonencode("${var.lakehead_wheel}\n${var.package_sha256}\n${local.package_region}\n")
      install      = indent(6, trimspace(file("${path.module}/lakehead-install")))

      # Without a block WAL nodes see no disk at all; with one, the data disks and never the machine's own.
      groups          = jsonencode(var.wal_mode == "object" ? [] : ["lakehead-wal"])
      private_devices = var.wal_mode == "object" ? "yes" : "no"
      devices         = var.wal_mode == "object" ? "" : "block-blkext rw"
      device_rule     = jsonencode(var.wal_mode == "object" ? "" : local.device_rule)
    })
  }
}

# What would stop or replace a running instance, in a few letters: of what it is made.
locals {
  revisions = {
    for slot in keys(var.slots) : slot => substr(sha256(jsonencode([
      var.ami_id == null ? local.architecture : var.ami_id, var.ami_release, var.instance_type, var.volume_kms_key_arn, local.user_data[slot],
    ])), 0, 12)
  }
}

data "aws_region" "current" {}

# A zone's name stands for another place in another account, where clients may be: its id is the rack.
data "aws_availability_zone" "each" {
  for_each = toset([for host in var.slots : host.zone])
  name     = each.key
}

data "aws_s3_bucket" "package" {
  count  = local.wheel_from_s3 ? 1 : 0
  bucket = local.wheel_place[0]
}

data "aws_ec2_instance_type" "this" {
  instance_type = var.instance_type

  lifecycle {
    postcondition {
      condition     = self.bare_metal || self.hypervisor == "nitro"
      error_message = "Instance type ${var.instance_type} is not built on Nitro: it has neither NVMe volumes nor reservations. Choose a newer one, such as m7i.large."
    }
    postcondition {
      condition     = var.nodes_per_host > 0 || self.default_vcpus <= var.node_ids_per_host
      error_message = "Instance type ${var.instance_type} has more cores than a host has node ids (${var.node_ids_per_host}). Give nodes_per_host a number, or choose a smaller type."
    }
  }
}

data "aws_ssm_parameter" "al2023" {
  count = var.ami_id == null ? 1 : 0
  name  = "/aws/service/ami-amazon-linux-latest/al2023-ami-kernel-default-${local.architecture}"
}

# Keeps the image of the first apply, so that a release of Amazon's does not replace hosts.
resource "terraform_data" "ami" {
  input            = local.ami_id
  triggers_replace = concat([var.ami_id, data.aws_ec2_instance_type.this.supported_architectures], var.ami_release == null ? [] : [var.ami_release])

  lifecycle {
    ignore_changes = [input]
  }
}

# Hosts fetch it before each start and look for a change each minute (`lakehead-settings`).
resource "aws_s3_object" "settings" {
  #checkov:skip=CKV_AWS_186:encrypted by the bucket's key, as all that is in it
  bucket       = var.bucket
  key          = local.settings_key
  content      = local.settings_toml
  content_type = "application/toml"

  # An object takes ten tags at the most, and the provider's own may be more.
  override_provider {
    default_tags {
      tags = {}
    }
  }
}

# Hosts look for it every ten minutes (`lakehead-cloudwatch`), so it is there when it says "off", too.
resource "aws_s3_object" "agent" {
  #checkov:skip=CKV_AWS_186:encrypted by the bucket's key, as all that is in it
  bucket       = var.bucket
  key          = local.agent_key
  content      = var.agent_config
  content_type = "application/jsonl"

  override_provider {
    default_tags {
      tags = {}
    }
  }
}

# Looked for once the settings are there, and with them the bucket, whose name is known before it is.
data "aws_s3_objects" "reports" {
  bucket = aws_s3_object.settings.id == "" ? "" : var.bucket
  prefix = local.reports_prefix
}

resource "aws_network_interface" "host" {
  for_each        = var.slots
  subnet_id       = each.value.subnet_id
  security_groups = [var.security_group_id]
  description     = "Lakehead ${var.name} ${each.key}"
  tags            = merge(var.tags, { Name = "${var.name}-${each.key}", "lakehead:slot" = each.key })

  # It is a running instance's first one, which cannot be taken from it.
  lifecycle {
    ignore_changes = [subnet_id]
  }
}

resource "aws_instance" "host" {
  #checkov:skip=CKV_AWS_126:status checks come each minute without it; brokers' own metrics are Prometheus pages
  for_each                    = var.slots
  ami                         = terraform_data.ami.output
  instance_type               = data.aws_ec2_instance_type.this.instance_type
  iam_instance_profile        = aws_iam_instance_profile.broker.name
  user_data                   = local.user_data[each.key]
  user_data_replace_on_change = true
  ebs_optimized               = true

  network_interface {
    device_index         = 0
    network_interface_id = aws_network_interface.host[each.key].id
  }

  metadata_options {
    http_endpoint               = "enabled"
    http_tokens                 = "required"
    http_put_response_hop_limit = 1
    instance_metadata_tags      = "enabled" # cluster, slot and first node id
  }

  root_block_device {
    volume_type = "gp3"
    volume_size = var.root_gib
    encrypted   = true
    kms_key_id  = var.volume_kms_key_arn
  }

  tags = merge(var.tags, {
    Name               = "${var.name}-${each.key}"
    "lakehead:slot"    = each.key
    "lakehead:node-id" = tostring(each.value.node_id)

    "lakehead:revision" = local.revisions[each.key]
    "lakehead:wal-mode" = var.wal_mode
  })

  # A host waits for its settings, and has them to its end.
  depends_on = [aws_s3_object.settings, aws_s3_object.agent]

  lifecycle {
    # An apply changes all hosts at once, so it may change none that is there in a way that stops it. A
    # host has what is new when it is replaced, by `lakehead rolling-update` or by -replace.
    ignore_changes = [
      ami, instance_type, user_data, ebs_optimized, network_interface, root_block_device[0].kms_key_id,
      tags["lakehead:revision"], tags["lakehead:wal-mode"], tags_all["lakehead:revision"], tags_all["lakehead:wal-mode"],
      tags["lakehead:node-id"], tags_all["lakehead:node-id"],
    ]

    # Named here so that volumes are made before the hosts that look for them, and go after them.
    precondition {
      condition     = length(var.wal_volume_ids) == 0 || contains(keys(var.wal_volume_ids), each.key)
      error_message = "Host ${each.key} has no WAL volume among wal_volume_ids."
    }
    precondition {
      condition     = length(base64encode(local.user_data[each.key])) <= 21844 # of 16,383 bytes; length counts characters
      error_message = "User data of ${each.key} is longer than EC2's 16 KiB. Choose a shorter name, prefix or address of the package."
    }
  }
}
