variable "name" {
  description = "Name of the cluster."
  type        = string
}

variable "tags" {
  description = "Tags of every resource."
  type        = map(string)
}

variable "bucket" {
  description = "Bucket of the cluster: part of the names of log groups, and of the dimension of metrics."
  type        = string
}

variable "logs" {
  description = "Ship hosts' journals."
  type        = bool
}

variable "metrics" {
  description = "Ship brokers' metrics."
  type        = bool
}

variable "retention_days" {
  description = "For how many days CloudWatch keeps what was shipped."
  type        = number
}

variable "kms_key_arn" {
  description = "KMS key of the log groups, whose policy lets CloudWatch Logs use it; null: CloudWatch's own."
  type        = string
}

variable "metrics_port" {
  description = "Port of the first node's metrics page."
  type        = number
}

variable "nodes_per_host" {
  description = "Nodes of each host."
  type        = number
}
