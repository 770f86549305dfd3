variable "name" {
  description = "Name of the cluster."
  type        = string
}

variable "tags" {
  description = "Tags of every resource."
  type        = map(string)
}

variable "vpc_id" {
  description = "VPC of the brokers."
  type        = string
}

variable "client_cidrs" {
  description = "Private IPv4 ranges whose clients may reach the brokers, by a name that does not change."
  type        = map(string)
}

variable "client_security_group_ids" {
  description = "Security groups whose members may reach the brokers, by a name that does not change."
  type        = map(string)
  default     = {}
}

variable "dns_cidrs" {
  description = "Ranges of DNS servers that are not Amazon's resolver."
  type        = map(string)
  default     = {}
}

variable "kafka_ports" {
  description = "First and last port of the nodes of a host."
  type        = object({ first = number, last = number })
}

variable "node_ports" {
  description = "First and last port at which nodes take one another's connections, where that is a listener of its own; null: it is that of clients."
  type        = object({ first = number, last = number })
  default     = null
}

variable "metrics_ports" {
  description = "First and last port of the nodes' metrics pages."
  type        = object({ first = number, last = number })
}

variable "https_egress_cidrs" {
  description = "Ranges that hosts may reach by HTTPS in addition to S3, such as a package mirror."
  type        = map(string)
  default     = {}
}

variable "force_destroy" {
  description = "Let destroy delete the places for secrets at once, and not after seven days."
  type        = bool
  default     = false
}

variable "kms_key_arn" {
  description = "KMS key of the secrets."
  type        = string
}

variable "secrets" {
  description = "Make places in Secrets Manager for the hosts' certificate and the password of the first user."
  type        = bool
  default     = false
}

variable "s3_services" {
  description = "s3, and s3express for a directory bucket: services that hosts reach by their prefix lists."
  type        = set(string)
  default     = ["s3"]
}
