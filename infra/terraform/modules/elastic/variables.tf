variable "name" {
  description = "Name of the cluster, and of the group."
  type        = string
}

variable "tags" {
  description = "Tags of every resource."
  type        = map(string)
}

variable "bucket" {
  description = "Bucket of the cluster, by which its interfaces and instances are known."
  type        = string
}

variable "slots" {
  description = "Places for hosts, more than there will be hosts at once: zone, subnet and the id of the first node."
  type        = map(object({ zone = string, subnet_id = string, node_id = number }))
}

variable "hosts" {
  description = "The least and the most hosts, in all zones together."
  type        = object({ min = number, max = number })
}

variable "instance_types" {
  description = "Instance types by preference, all of one size and architecture; on-demand hosts are of the first that is to be had."
  type        = list(string)
}

variable "on_demand_base" {
  description = "Hosts that are never spot instances."
  type        = number
}

variable "spot_percent" {
  description = "Share of spot instances among the other hosts."
  type        = number
}

variable "mib_per_second" {
  description = "Traffic that each host is to have, in MiB/s, in the direction that has more of it."
  type        = number
}

variable "cpu_percent" {
  description = "CPU that each host is to use at the most; null: it does not count."
  type        = number
}

variable "refresh_alarms" {
  description = "Names of CloudWatch alarms that end and undo an instance refresh."
  type        = list(string)
  default     = []
}

variable "ami_id" {
  description = "Machine image."
  type        = string
}

variable "architecture" {
  description = "Architecture of the image."
  type        = string
}

variable "root_gib" {
  description = "Size of the root volume in GiB."
  type        = number
}

variable "user_data" {
  description = "Cloud-init user data, the same for all hosts: which claims a slot, and tells the group when it serves and when it has stopped."
  type        = string
}

variable "nodes_per_host" {
  description = "Nodes of a host; 0: one for each core."
  type        = number
}

variable "node_ids_per_host" {
  description = "Number of node ids that are reserved for each slot."
  type        = number
}

variable "security_group_id" {
  description = "Security group of the brokers."
  type        = string
}

variable "role_name" {
  description = "Role of the brokers, which gets what claims and hooks need."
  type        = string
}

variable "instance_profile_name" {
  description = "Instance profile with that role."
  type        = string
}
