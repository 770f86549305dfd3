variable "name" {
  description = "Name of the cluster; prefix of every name."
  type        = string
}

variable "tags" {
  description = "Tags of every resource."
  type        = map(string)
}

variable "bucket" {
  description = "The cluster's bucket, by which names are its own."
  type        = string
}

variable "vpc_id" {
  description = "VPC of the brokers."
  type        = string
}

variable "subnet_ids" {
  description = "A subnet of the load balancer in each zone, by the zone's name."
  type        = map(string)
}

variable "broker_security_group_id" {
  description = "Security group of the brokers."
  type        = string
}

variable "hosts" {
  description = "Address and first node id of each host, by slot; with scaling, of each slot."
  type        = map(object({ address = string, node_id = number }))
}

variable "nodes_per_host" {
  description = "Number of nodes of a host."
  type        = number
}

variable "domain" {
  description = "Name for clients, such as lake.example.com: they resolve it, and with several zones the names RACK.DOMAIN."
  type        = string
}

variable "allowed_principals" {
  description = "ARNs of accounts, roles or users that may make an endpoint; none: no endpoint service is made."
  type        = list(string)
}

variable "acceptance_required" {
  description = "Require acceptance of each endpoint."
  type        = bool
  default     = true
}

variable "client_cidrs" {
  description = "Private IPv4 ranges whose clients reach the load balancer without PrivateLink, by a name."
  type        = map(string)
  default     = {}
}

variable "cross_zone" {
  description = "Let each address of the load balancer lead to nodes of all zones, which AWS bills by traffic; one name is then enough."
  type        = bool
  default     = false
}

variable "certificate_arn" {
  description = "Certificate of ACM for the domain and *.DOMAIN: the load balancer then speaks TLS to clients. Null: as the brokers, plain TCP."
  type        = string
  default     = null
}

variable "ssl_policy" {
  description = "Security policy of TLS."
  type        = string
  default     = "ELBSecurityPolicy-TLS13-1-2-2021-06"
}

variable "bootstrap_port" {
  description = "Port of the load balancer at which clients begin."
  type        = number
}

variable "first_port" {
  description = "Port of the load balancer that leads to node 0; that of node N is N higher."
  type        = number
}

variable "target_port" {
  description = "Port of the further listener of a host's first node; the others count up."
  type        = number
}

variable "metrics_port" {
  description = "Port of the page of a host's first node that has the probe /ready; the others count up."
  type        = number
}

variable "alarm" {
  description = "Raise an alarm when no node takes these clients."
  type        = bool
  default     = true
}

variable "alarm_topic_arns" {
  description = "SNS topics that the alarm is sent to."
  type        = list(string)
  default     = []
}

variable "is_tls" {
  description = "Nodes speak TLS at target_port."
  type        = bool
  default     = false
}
