variable "name" {
  description = "Name of the cluster."
  type        = string
}

variable "bucket" {
  description = "Bucket of the cluster, which is in names that have to be its own and in its hosts' tags."
  type        = string
}

variable "tags" {
  description = "Tags of every resource."
  type        = map(string)
}

variable "slots" {
  description = "Slots of the hosts."
  type        = set(string)
}

variable "instance_ids" {
  description = "Instance of each slot."
  type        = map(string)
}

variable "alarm_topic_arns" {
  description = "SNS topics that get a message of each action."
  type        = list(string)
  default     = []
}
