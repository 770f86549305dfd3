variable "name" {
  description = "Name of the cluster."
  type        = string
}

variable "tags" {
  description = "Tags of every resource."
  type        = map(string)
}

variable "bucket" {
  description = "Bucket of the cluster: part of the names of alarms and dashboard."
  type        = string
}

variable "slots" {
  description = "Slots of the hosts."
  type        = set(string)
}

variable "instance_ids" {
  description = "Instance of each slot."
  type        = map(string)
}

variable "group" {
  description = "Auto scaling group of the hosts, with its least and largest number; null: hosts are in slots."
  type        = object({ name = string, min = number, max = number })
  default     = null
}

variable "other_instance_ids" {
  description = "Further instances whose status is watched, by a name."
  type        = map(string)
}

variable "security_group_id" {
  description = "Security group of the brokers, by which Prometheus finds them."
  type        = string
}

variable "addresses" {
  description = "Address of each slot."
  type        = map(string)
}

variable "volume_ids" {
  description = "WAL volume of each slot; none with an object WAL."
  type        = map(string)
}

variable "metrics_port" {
  description = "Port of the first node's metrics page."
  type        = number
}

variable "nodes_per_host" {
  description = "Nodes of each host."
  type        = number
}

variable "alarm_topic_arns" {
  description = "SNS topics that get the alarms."
  type        = list(string)
}

variable "broker_metrics" {
  description = "Namespace and value of the dimension `cluster` of the brokers' metrics in CloudWatch; null: they are not there."
  type        = object({ namespace = string, cluster = string })
  default     = null
}
