variable "region" {
  description = "AWS region."
  type        = string
  default     = "us-east-1"

  validation {
    condition     = can(regex("^[a-z]{2}(-[a-z]+)+-[0-9]$", var.region))
    error_message = "region is a region's name, such as us-east-1."
  }
}

variable "cluster" {
  description = "Output of the cluster's account: client of its output private_link (`terraform output -json private_link`)."
  type = object({
    service_name = string
    domain       = string
    racks        = list(string)
    ports        = object({ bootstrap = number, first = number, last = number })
  })
}

variable "vpc_id" {
  description = "VPC of the clients, with DNS support and DNS host names on."
  type        = string
}

variable "subnet_ids" {
  description = "A subnet of it in each of the cluster's zones, by the zone's name in this account."
  type        = map(string)
}

variable "client_cidrs" {
  description = "Ranges of the clients, by a name, such as the VPC's: { vpc = \"10.60.0.0/16\" }."
  type        = map(string)
}
