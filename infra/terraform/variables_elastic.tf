variable "scaling" {
  description = "Hosts that come and go in place of hosts_per_zone: from min to max in all zones together, so that each has mib_per_second in the direction that has more (and, if it is given, cpu_percent); on_demand_base of them (null: min) are never spot instances, of the others spot_percent are; more_instance_types may be taken in place of instance_type, in this order; an instance refresh is undone when one of refresh_alarms, names of CloudWatch alarms of yours, goes off. Null: fixed hosts."
  type = object({
    min                 = number
    max                 = number
    mib_per_second      = optional(number, 40)
    cpu_percent         = optional(number)
    on_demand_base      = optional(number)
    spot_percent        = optional(number, 0)
    more_instance_types = optional(list(string), [])
    refresh_alarms      = optional(list(string), [])
  })
  default = null

  validation {
    condition     = var.scaling == null || var.wal_mode == "object"
    error_message = "scaling needs wal_mode = \"object\": hosts that come and go would leave EBS volumes behind, with records that nobody else has."
  }
  validation {
    condition     = var.scaling == null ? true : var.scaling.min >= 1 && var.scaling.min <= var.scaling.max && var.scaling.max <= 100 && floor(var.scaling.min) == var.scaling.min && floor(var.scaling.max) == var.scaling.max
    error_message = "scaling.min and scaling.max are whole numbers, 1 <= min <= max <= 100."
  }
  validation {
    condition     = var.scaling == null ? true : var.scaling.on_demand_base == null ? true : var.scaling.on_demand_base >= 0 && var.scaling.on_demand_base <= var.scaling.max && floor(var.scaling.on_demand_base) == var.scaling.on_demand_base
    error_message = "scaling.on_demand_base is a whole number from 0 to scaling.max: it is the part of the hosts that are never spot instances."
  }
  validation {
    condition     = var.scaling == null ? true : var.scaling.spot_percent >= 0 && var.scaling.spot_percent <= 100 && floor(var.scaling.spot_percent) == var.scaling.spot_percent
    error_message = "scaling.spot_percent is a whole number from 0 (none above on_demand_base) to 100 (all)."
  }
  validation {
    condition     = var.scaling == null ? true : var.scaling.mib_per_second >= 1 && var.scaling.mib_per_second <= 10000
    error_message = "scaling.mib_per_second is 1 to 10000, and less than the instance type's baseline bandwidth, or no number of hosts is ever enough."
  }
  validation {
    condition     = var.scaling == null ? true : var.scaling.cpu_percent == null ? true : var.scaling.cpu_percent >= 10 && var.scaling.cpu_percent <= 95
    error_message = "scaling.cpu_percent is 10 to 95, or null."
  }
  validation {
    condition     = var.scaling == null ? true : alltrue([for type in var.scaling.more_instance_types : can(regex("^[a-z][a-z0-9-]*\\.[a-z0-9-]+$", type)) && reverse(split(".", type))[0] == reverse(split(".", var.instance_type))[0]])
    error_message = "scaling.more_instance_types look like m6i.large and have instance_type's size: the group counts hosts, whatever they can do."
  }
  validation {
    condition     = var.scaling == null ? true : length(var.scaling.refresh_alarms) <= 10
    error_message = "scaling.refresh_alarms are ten names at the most, as AWS takes them."
  }
  validation {
    condition     = var.scaling == null || var.hosts_per_zone == 1
    error_message = "With scaling, the traffic decides how many hosts there are: remove hosts_per_zone."
  }
  validation {
    condition     = var.scaling == null || !contains(keys(var.settings), "ec2.notices")
    error_message = "With scaling, settings may not hold ec2.notices: it is scaling, or the group would end hosts that know nothing of it."
  }
  # Each slot has an address, each instance another one; AWS keeps five of a subnet.
  validation {
    condition     = var.scaling == null || var.existing_vpc != null ? true : pow(2, 28 - tonumber(split("/", var.vpc_cidr)[1])) >= 2 * (ceil(var.scaling.max / max(1, length(var.zones) - 1)) + max(1, ceil(var.scaling.max / 10))) + 10
    error_message = "vpc_cidr has too few addresses for so many slots, of which each takes two: give a larger range, such as 10.42.0.0/16, or lower scaling.max."
  }
}
