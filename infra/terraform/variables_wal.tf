variable "wal_mode" {
  description = "Place of acknowledged records until they are uploaded: object (in the bucket, any number of zones), io2-multi-attach (a shared disk, one zone) or gp3 (a cheap disk, one zone)."
  type        = string
  default     = "object"

  validation {
    condition     = contains(["io2-multi-attach", "gp3", "object"], var.wal_mode)
    error_message = "wal_mode is object, io2-multi-attach or gp3."
  }
  validation {
    condition     = var.wal_mode == "object" || length(var.zones) == 1
    error_message = "An EBS volume stays in its zone: wal_mode io2-multi-attach and gp3 need exactly one zone. Name one in zones, or use wal_mode = \"object\"."
  }
  validation {
    condition     = var.wal_mode != "io2-multi-attach" || var.hosts_per_zone >= 2
    error_message = "io2-multi-attach shares each volume with another host of the zone: set hosts_per_zone to 2 or more, or use wal_mode = \"gp3\"."
  }
  validation {
    condition     = var.wal_mode != "io2-multi-attach" || alltrue([for zone in var.zones : contains(var.multi_attach_regions, substr(zone, 0, length(zone) - 1))])
    error_message = "The zone's region is not among multi_attach_regions. Use wal_mode = \"gp3\" or \"object\"; if AWS offers io2 with multi-attach there by now, add the region to multi_attach_regions."
  }
}

variable "wal_volume" {
  description = "WAL volume of each host with a block WAL: size in GiB, IOPS, and of gp3 the throughput in MiB/s."
  type = object({
    gib            = optional(number, 10)
    iops           = optional(number)
    mib_per_second = optional(number)
  })
  default = {}

  validation {
    condition     = var.wal_volume.gib >= 4 && var.wal_volume.gib <= 65536 && floor(var.wal_volume.gib) == var.wal_volume.gib
    error_message = "wal_volume.gib is a whole number from 4 to 65536 (64 TiB): io2's limits, and a node wants about 1 GiB."
  }
  validation {
    condition     = var.wal_volume.iops == null ? true : var.wal_mode != "io2-multi-attach" || (var.wal_volume.iops >= 100 && var.wal_volume.iops <= 256000)
    error_message = "wal_volume.iops of an io2 volume is 100 to 256000. 500 are 125 MiB/s."
  }
  validation {
    condition     = var.wal_volume.iops == null ? true : var.wal_mode != "io2-multi-attach" || var.wal_volume.iops <= 1000 * var.wal_volume.gib
    error_message = "An io2 volume has at most 1,000 IOPS per GiB: lower wal_volume.iops or raise wal_volume.gib."
  }
  validation {
    condition     = var.wal_volume.iops == null ? true : var.wal_mode != "gp3" || (var.wal_volume.iops >= 3000 && var.wal_volume.iops <= min(80000, max(3000, 500 * var.wal_volume.gib)))
    error_message = "wal_volume.iops of a gp3 volume is 3000 to 80000, and above 3000 at most 500 per GiB."
  }
  validation {
    condition     = var.wal_volume.mib_per_second == null ? true : var.wal_mode == "gp3" && var.wal_volume.mib_per_second >= 125 && var.wal_volume.mib_per_second <= 1000 && var.wal_volume.mib_per_second <= 0.25 * coalesce(var.wal_volume.iops, 3000)
    error_message = "wal_volume.mib_per_second is for gp3 only (io2 gives 0.25 MiB/s for each IOPS): 125 to 1000 (AWS has 2000, this release of its provider not yet), and at most a quarter of iops."
  }
  validation {
    condition     = var.wal_mode != "object" || (var.wal_volume.iops == null && var.wal_volume.mib_per_second == null)
    error_message = "wal_mode object has no volumes: remove wal_volume, or choose gp3 or io2-multi-attach."
  }
}

variable "wal_takers" {
  description = "Number of other hosts of the zone that each io2 volume is attached to; at most as many as there are."
  type        = number
  default     = 2

  validation {
    condition     = var.wal_takers >= 1 && var.wal_takers <= 12 && floor(var.wal_takers) == var.wal_takers
    error_message = "wal_takers is 1 to 12: an instance has 28 attachments, and with 12 a host may have 25 WAL volumes. A volume has at most 16."
  }
}

variable "ec2_endpoint" {
  description = "Give a new VPC an interface endpoint of EC2 for a block WAL (some $7 a month and zone): hosts find and attach their volumes by it. Without it, give them another way to EC2."
  type        = bool
  default     = true
}

variable "wal_puts_budget" {
  description = "With an object WAL: dollars a month that each node's puts may cost, which bounds how often it puts under small loads; 0: no limit."
  type        = number
  default     = 50

  validation {
    condition     = var.wal_puts_budget >= 0 && floor(var.wal_puts_budget) == var.wal_puts_budget
    error_message = "wal_puts_budget is whole dollars, 0 or more."
  }
}

variable "multi_attach_regions" {
  description = "Regions where io2 volumes with multi-attach are taken to be on offer; add to it as AWS does."
  type        = set(string)
  default = [
    "ap-east-1", "ap-northeast-1", "ap-northeast-2", "ap-northeast-3", "ap-south-1", "ap-southeast-1", "ap-southeast-2",
    "ca-central-1", "eu-central-1", "eu-north-1", "eu-south-1", "eu-west-1", "eu-west-2", "eu-west-3", "me-south-1",
    "sa-east-1", "us-east-1", "us-east-2", "us-west-1", "us-west-2",
  ]

  validation {
    condition     = alltrue([for region in var.multi_attach_regions : can(regex("^[a-z]{2}(-[a-z]+)+-[0-9]$", region))])
    error_message = "multi_attach_regions are names of regions, such as us-east-1."
  }
}

variable "wal_express" {
  description = "Put an object WAL of one zone into a directory bucket (S3 Express One Zone) of its own, for acknowledgements in single milliseconds. Records that are not uploaded yet are lost with the zone."
  type        = bool
  default     = false

  validation {
    condition     = !var.wal_express || var.wal_mode == "object"
    error_message = "wal_express is for wal_mode = \"object\": the block modes have their log on a volume."
  }
  validation {
    condition     = !var.wal_express || length(var.zones) == 1
    error_message = "S3 Express lies in one zone: wal_express needs exactly one in zones. With several, leave it out: S3 itself is in all of them."
  }
  validation {
    condition     = !var.wal_express || length(var.bucket) <= 42
    error_message = "With wal_express bucket has at most 42 characters: the directory bucket's name is bucket, -wal, the zone and --x-s3."
  }
}

variable "express_zone_ids" {
  description = "Ids of the zones where S3 Express is taken to be on offer; add to it as AWS does."
  type        = set(string)
  default = [
    "apne1-az1", "apne1-az4", "aps1-az1", "aps1-az3", "eun1-az1", "eun1-az2", "eun1-az3", "euw1-az1", "euw1-az3",
    "use1-az4", "use1-az5", "use1-az6", "use2-az1", "use2-az2", "usw2-az1", "usw2-az3", "usw2-az4",
  ]

  validation {
    condition     = alltrue([for id in var.express_zone_ids : can(regex("^[a-z]+[0-9]-az[0-9]+$", id))])
    error_message = "express_zone_ids are ids of zones, such as use1-az4, not their names, which differ by account."
  }
}
