# Hosts that come and go (var.scaling): slots that stay, in a group over all zones.

locals {
  # Room for what a lost zone had, and for hosts that serve before those they replace have left.
  group_slots_per_zone = var.scaling == null ? 0 : (
    ceil(var.scaling.max / max(1, length(var.zones) - 1)) + max(1, ceil(var.scaling.max / 10))
  )
  group_slots = merge([
    for index, zone in var.zones : {
      for number in range(local.group_slots_per_zone) :
      "${substr(zone, length(zone) - 1, 1)}-${number}" => {
        zone    = zone
        node_id = local.node_ids_per_host * (number * length(var.zones) + index)
      }
    }
  ]...)

  # For the estimate of costs. A byte leaves a host for the WAL, as an upload, and to each reader.
  expected_hosts = var.scaling == null ? 0 : min(var.scaling.max, max(
    var.scaling.min, ceil(var.expected_traffic.mib_per_second * (2 + var.expected_traffic.readers) / var.scaling.mib_per_second)
  ))
  on_demand_base = var.scaling == null ? local.host_count : coalesce(var.scaling.on_demand_base, var.scaling.min)
  spot_hosts     = var.scaling == null ? 0 : floor(max(0, local.host_count - local.on_demand_base) * var.scaling.spot_percent / 100)
  paid_hosts     = local.host_count - local.spot_hosts * (1 - var.prices.spot_share)
}

module "elastic" {
  source = "./modules/elastic"
  count  = var.scaling == null ? 0 : 1

  name                  = var.name
  tags                  = local.tags
  bucket                = module.storage.bucket
  slots                 = { for slot, host in local.group_slots : slot => { zone = host.zone, subnet_id = module.network.subnet_ids[host.zone], node_id = host.node_id } }
  hosts                 = { min = var.scaling.min, max = var.scaling.max }
  instance_types        = distinct(concat([var.instance_type], var.scaling.more_instance_types))
  on_demand_base        = local.on_demand_base
  spot_percent          = var.scaling.spot_percent
  mib_per_second        = var.scaling.mib_per_second
  cpu_percent           = var.scaling.cpu_percent
  refresh_alarms        = var.scaling.refresh_alarms
  ami_id                = module.brokers.ami_id
  architecture          = module.brokers.architecture
  root_gib              = var.root_gib
  user_data             = module.brokers.group_user_data
  nodes_per_host        = var.nodes_per_host
  node_ids_per_host     = local.node_ids_per_host
  security_group_id     = module.security.security_group_id
  role_name             = module.brokers.role_name
  instance_profile_name = module.brokers.instance_profile_name
}

output "slots" {
  description = "Places for the hosts of scaling: zone, first node id, address; none with fixed hosts."
  value = {
    for slot, host in local.group_slots : slot => {
      zone    = host.zone
      node_id = host.node_id
      address = module.elastic[0].addresses[slot]
    }
  }
}

output "scaling_policy_json" {
  description = "IAM policy of brokers in addition to broker_policy_json with scaling; null without."
  value       = one(module.elastic[*].scaling_policy_json)
}
