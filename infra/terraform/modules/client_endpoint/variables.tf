variable "name" {
  description = "Prefix of every name, such as the clients' application."
  type        = string

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{1,40}$", var.name))
    error_message = "name is 2 to 41 small letters, digits and hyphens, and begins with a letter."
  }
}

variable "tags" {
  description = "Tags of every resource."
  type        = map(string)
  default     = {}
}

variable "service_name" {
  description = "The cluster's endpoint service: service_name in client of its output private_link."
  type        = string

  validation {
    condition     = can(regex("^com\\.amazonaws\\.vpce\\.[a-z0-9-]+\\.vpce-svc-[0-9a-z]+$", var.service_name))
    error_message = "service_name looks like com.amazonaws.vpce.us-east-1.vpce-svc-0123456789abcdef0."
  }
}

variable "domain" {
  description = "The name that brokers tell their clients: domain there."
  type        = string

  validation {
    condition     = can(regex("^([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\\.)+[a-z]{2,63}$", var.domain))
    error_message = "domain is a domain's name in small letters, such as lake.example.com."
  }
}

variable "racks" {
  description = "Ids of the cluster's zones, such as use1-az4, each of which has a name: racks there; none where one name leads to all nodes."
  type        = list(string)
  default     = []

  validation {
    condition     = alltrue([for rack in var.racks : can(regex("^[a-z]+[0-9]+-az[0-9]+$", rack))])
    error_message = "racks are ids of zones, such as use1-az4, not their names."
  }
}

variable "ports" {
  description = "Ports of the cluster's load balancer: where clients begin, and those of the first and the last node: ports there."
  type        = object({ bootstrap = number, first = number, last = number })

  validation {
    condition     = alltrue([for port in values(var.ports) : port >= 1 && port <= 65535]) && var.ports.first <= var.ports.last
    error_message = "ports are from 1 to 65535, and first is not above last."
  }
}

variable "vpc_id" {
  description = "VPC of the clients, with DNS support and DNS host names on."
  type        = string
}

variable "subnet_ids" {
  description = "A subnet of the endpoint in each zone, by the zone's name in this account. If the cluster's zones have names (racks), give one in each of them."
  type        = map(string)

  validation {
    condition     = length(var.subnet_ids) > 0
    error_message = "subnet_ids needs a subnet in one zone at the least."
  }
}

variable "client_cidrs" {
  description = "IPv4 ranges whose clients may use the endpoint, by a name."
  type        = map(string)
  default     = {}

  validation {
    condition     = alltrue([for cidr in values(var.client_cidrs) : can(cidrhost(cidr, 0))])
    error_message = "client_cidrs are IPv4 ranges, such as 10.8.0.0/16."
  }
}

variable "client_security_group_ids" {
  description = "Security groups whose members may use the endpoint, by a name."
  type        = map(string)
  default     = {}

  validation {
    condition     = length(var.client_security_group_ids) + length(var.client_cidrs) > 0
    error_message = "client_cidrs or client_security_group_ids name the clients: without both none could use the endpoint."
  }
}
