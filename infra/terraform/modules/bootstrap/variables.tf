variable "name" {
  description = "Name of the cluster."
  type        = string
}

variable "tags" {
  description = "Tags of every resource."
  type        = map(string)
}

variable "kind" {
  description = "addresses, dns or nlb."
  type        = string
}

variable "zone_name" {
  description = "Name of the private hosted zone, with dns."
  type        = string
}

variable "vpc_id" {
  description = "VPC of the brokers and clients."
  type        = string
}

variable "subnet_ids" {
  description = "A subnet in each zone of the load balancer."
  type        = list(string)
}

variable "client_cidrs" {
  description = "Private IPv4 ranges whose clients may reach the load balancer, by a name."
  type        = map(string)
}

variable "client_security_group_ids" {
  description = "Security groups whose members may reach the load balancer, by a name."
  type        = map(string)
  default     = {}
}

variable "broker_security_group_id" {
  description = "Security group of the brokers."
  type        = string
}

variable "hosts" {
  description = "Address and first node id of each host, by slot."
  type        = map(object({ address = string, node_id = number }))
}

variable "port" {
  description = "Port of a host's first node."
  type        = number
}
