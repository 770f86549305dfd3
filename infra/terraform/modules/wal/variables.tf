variable "name" {
  description = "Name of the cluster."
  type        = string
}

variable "tags" {
  description = "Tags of every volume."
  type        = map(string)
}

variable "mode" {
  description = "io2-multi-attach or gp3."
  type        = string
}

variable "slots" {
  description = "Hosts by slot, with their zone and their number in it."
  type        = map(object({ zone = string, letter = string, number = number }))
}

variable "hosts_per_zone" {
  description = "Hosts of a zone."
  type        = number
}

variable "volume" {
  description = "Size in GiB, IOPS and, of gp3, throughput in MiB/s of each volume."
  type        = object({ gib = number, iops = number, mib_per_second = number })
}

variable "takers" {
  description = "Number of other hosts of the zone that each volume is attached to, with io2-multi-attach."
  type        = number
}

variable "final_snapshot" {
  description = "Take a snapshot of a volume that is removed: it may hold records that exist nowhere else."
  type        = bool
}

variable "kms_key_arn" {
  description = "KMS key of new volumes; null: the account's key of EBS, which nothing deletes."
  type        = string
  default     = null
}

variable "instance_ids" {
  description = "Instance of each slot."
  type        = map(string)
}
