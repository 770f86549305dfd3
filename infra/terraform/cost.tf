# The monthly estimate; docs/terraform.md has the formula in words.

locals {
  month_hours   = 730
  month_seconds = local.month_hours * 3600

  # Dollars an hour of a `large` in us-east-1; other sizes are multiples.
  large_hour = {
    c6i = 0.085, c7i = 0.08925, c7g = 0.0725, m6i = 0.096, m7i = 0.1008, m7g = 0.0816, r6i = 0.126, r7i = 0.1323, r7g = 0.1071
  }
  larges = { medium = 0.5, large = 1, xlarge = 2, "2xlarge" = 4, "4xlarge" = 8, "8xlarge" = 16, "12xlarge" = 24, "16xlarge" = 32, "24xlarge" = 48 }

  airflow_type = var.airflow_host == null ? var.instance_type : coalesce(var.airflow_host.instance_type, var.instance_type)
  table_hours = {
    for type in toset([var.instance_type, local.airflow_type]) : type => lookup(local.large_hour, split(".", type)[0], 0) * lookup(local.larges, split(".", type)[1], 0)
  }
  hours = {
    for type, hour in local.table_hours : type => type == var.instance_type && var.prices.instance_hour != null ? var.prices.instance_hour : hour > 0 ? hour : null
  }
  instance_hour = local.hours[var.instance_type]
  airflow_hour  = var.prices.airflow_hour != null ? var.prices.airflow_hour : local.hours[local.airflow_type]

  host_count = var.scaling == null ? length(local.slots) : local.expected_hosts
  node_count = local.host_count * local.nodes_per_host
  gib_second = var.expected_traffic.mib_per_second / 1024

  io2_month = (
    local.wal_volume.gib * var.prices.io2_gib
    + min(local.wal_volume.iops, 32000) * var.prices.io2_iops[0]
    + min(max(local.wal_volume.iops - 32000, 0), 32000) * var.prices.io2_iops[1]
    + max(local.wal_volume.iops - 64000, 0) * var.prices.io2_iops[2]
  )
  gp3_month = (
    local.wal_volume.gib * var.prices.gp3_gib
    + max(local.wal_volume.iops - 3000, 0) * var.prices.gp3_iops
    + max(local.wal_volume.mib_per_second - 125, 0) * var.prices.gp3_mibps
  )
  # Without a budget a node under a steady load of small appends puts about every 20 ms.
  node_puts_month = var.wal_puts_budget > 0 ? var.wal_puts_budget : local.month_seconds / 0.02 * var.prices.s3_puts_1000 / 1000

  # An object for every 8 MiB, at the least one in 10 s of each node, each with an entry of the metadata log.
  uploads = max(var.expected_traffic.mib_per_second / 8, local.node_count / 10) * local.month_seconds

  cost_parts = {
    instances    = local.instance_hour == null ? null : local.paid_hosts * local.month_hours * local.instance_hour
    root_volumes = local.host_count * var.root_gib * var.prices.gp3_gib
    wal_volumes  = local.host_count * { "object" = 0, "gp3" = local.gp3_month, "io2-multi-attach" = local.io2_month }[var.wal_mode]
    wal_puts     = local.block_wal ? 0 : local.node_count * local.node_puts_month
    requests     = (2 * local.uploads * var.prices.s3_puts_1000 + local.node_count * local.month_seconds * var.prices.s3_gets_1000) / 1000
    storage      = local.gib_second * 86400 * var.expected_traffic.retention_days * var.prices.s3_gib
    airflow = (
      var.airflow_host == null ? 0 : local.airflow_hour == null ? null :
      local.month_hours * local.airflow_hour + var.airflow_host.root_gib * var.prices.gp3_gib + var.prices.secret
    )
    cross_zone = local.gib_second * local.month_seconds * (1 + var.expected_traffic.readers) * (1 - 1 / length(var.zones)) * var.prices.cross_zone_gib
    fixed = (
      ((local.own_kms_key ? 1 : 0) + (local.own_node_key ? 1 : 0)) * var.prices.kms_key
      + (var.scaling == null ? 0 : local.host_count * var.prices.detailed_monitoring)
      + (local.is_secured ? 2 * var.prices.secret : 0)
      + (var.observability ? module.observability[0].alarms * var.prices.alarm + var.prices.dashboard : 0)
      + (length(module.cloudwatch) > 0 ? length(module.cloudwatch[0].metrics) * var.prices.metric : 0)
      + { addresses = 0, dns = var.prices.dns_zone, nlb = var.prices.nlb }[var.bootstrap]
      + (var.private_link == null ? 0 : var.prices.nlb + module.private_link[0].alarms * var.prices.alarm)
      + (length(module.healing) > 0 ? module.healing[0].alarms * var.prices.alarm : 0)
      + length(local.interface_endpoints) * length(var.zones) * var.prices.endpoint_by_zone
    )
  }
  cost = { for part, dollars in local.cost_parts : part => dollars == null ? null : floor(dollars * 100 + 0.5) / 100 }
}

output "monthly_cost_estimate" {
  description = "Dollars a month by part, and in all (null without a price of the instance types: set prices.instance_hour, prices.airflow_hour). wal_puts is the ceiling that wal_puts_budget sets."
  value       = merge(local.cost, { total = anytrue([for dollars in values(local.cost) : dollars == null]) ? null : floor(sum(values(local.cost)) * 100 + 0.5) / 100 })
}
