locals {
  own_tags = merge(var.tags, { "lakehead:cluster" = var.name })
  # Naming the bucket has all that is tagged wait for it: a name that is taken is found out first.
  tags      = merge(local.own_tags, { "lakehead:bucket" = module.storage.bucket })
  block_wal = var.wal_mode != "object"

  own_kms_key = var.own_kms_key == null ? var.kms_key_arn == null : var.own_kms_key

  # A new host per zone comes after all that there are, so no host's node ids ever change.
  node_ids_per_host = 100
  slots = merge([
    for index, zone in var.zones : {
      for number in range(var.first_host, var.first_host + (var.scaling == null ? var.hosts_per_zone : 0)) :
      "${substr(zone, length(zone) - 1, 1)}-${number}" => {
        zone    = zone
        letter  = substr(zone, length(zone) - 1, 1)
        number  = number
        node_id = local.node_ids_per_host * (number * length(var.zones) + index)
      }
    }
  ]...)

  wal_volume = {
    gib            = var.wal_volume.gib
    iops           = coalesce(var.wal_volume.iops, var.wal_mode == "gp3" ? 3000 : 500)
    mib_per_second = var.wal_mode == "gp3" ? coalesce(var.wal_volume.mib_per_second, 125) : 0
  }

  # A put of S3 Express costs less than a quarter of one of S3.
  object_wal = (
    var.wal_express
    ? "object:s3://${coalesce(module.storage.wal_bucket, "none")}/${var.prefix}?region=${data.aws_region.current.name}&budget=${var.wal_puts_budget}&put_price=0.00113"
    : "object:?budget=${var.wal_puts_budget}"
  )
  # By its slot, not its id: a volume that is made anew changes no user data.
  wal_uris = {
    for slot in keys(local.slots) : slot => local.block_wal ? "block:ebs:${slot}?format=yes&grow=yes" : local.object_wal
  }
  s3_services = toset(var.wal_express ? ["s3", "s3express"] : ["s3"])

  # With scaling, of all slots: which of them have a host changes; the first ones always did.
  addresses = var.scaling == null ? module.brokers.private_ips : module.elastic[0].addresses

  # Hosts ask EC2 for their volumes, read their secrets, have data keys wrapped, and ship logs; in an existing VPC the way there is not ours to make.
  interface_endpoints = setunion(
    var.interface_endpoints,
    local.block_wal && var.ec2_endpoint && var.existing_vpc == null ? ["ec2"] : [],
    var.scaling != null && var.existing_vpc == null ? ["ec2", "autoscaling"] : [],
    var.cloudwatch != null && var.existing_vpc == null ? ["logs"] : [],
    local.is_secured && var.existing_vpc == null ? ["secretsmanager"] : [],
    var.encryption != null && var.existing_vpc == null ? ["kms"] : [],
  )

  # Without a number a host has at most as many nodes as ids.
  ports_per_host = var.nodes_per_host > 0 ? var.nodes_per_host : local.node_ids_per_host

  nodes_per_host = var.nodes_per_host > 0 ? var.nodes_per_host : module.brokers.vcpus
  link_settings  = var.private_link == null ? {} : { for name, value in module.private_link[0].settings : name => tostring(value) }

  kafka_ports  = { first = var.kafka_port, last = var.kafka_port + local.ports_per_host - 1 }
  vpc_cidrs    = { for index, cidr in module.network.vpc_cidrs : index == 0 ? "vpc" : "vpc-${cidr}" => cidr }
  client_cidrs = merge(var.client_cidrs, local.vpc_cidrs)

  # What hosts need beside S3: EC2 for volumes and slots, Systems Manager, Secrets Manager, KMS, CloudWatch Logs.
  needs_services = local.is_secured || var.encryption != null || local.block_wal || var.scaling != null || var.session_manager || var.airflow_host != null || var.cloudwatch != null
  has_nat        = try(var.existing_vpc.services, null) == "nat"
  https_egress_cidrs = merge(
    var.https_egress_cidrs,
    local.needs_services || length(local.interface_endpoints) > 0 ? { for key, cidr in local.vpc_cidrs : replace(key, "vpc", "endpoints") => cidr } : {},
    local.has_nat ? { nat = "0.0.0.0/0" } : {},
  )
  reaches_other_regions = local.has_nat || length(var.https_egress_cidrs) > 0
}
