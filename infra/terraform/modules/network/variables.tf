variable "name" {
  description = "Name of the cluster; prefix of every name."
  type        = string
}

variable "tags" {
  description = "Tags of every resource."
  type        = map(string)
}

variable "zones" {
  description = "Availability zones, such as us-east-1a, in the order of their letters' slots."
  type        = list(string)
}

variable "cidr" {
  description = "IPv4 range of a new VPC, /16 to /24: each zone gets a sixteenth of it."
  type        = string
}

variable "existing" {
  description = "An existing VPC instead of a new one: its id, one subnet id per zone, and the route tables that are to get the S3 gateway endpoint (none: it is there already); cidrs are its IPv4 ranges, null: they are looked up."
  type = object({
    vpc_id          = string
    subnet_ids      = map(string)
    route_table_ids = optional(list(string), [])
    cidrs           = optional(list(string))
  })
  default = null
}

variable "interface_endpoints" {
  description = "AWS services that get an interface endpoint in a new VPC, such as ssm, ssmmessages; each costs by the hour and zone."
  type        = set(string)
  default     = []
}

variable "s3_services" {
  description = "s3, and s3express for a directory bucket: services that get a gateway endpoint."
  type        = set(string)
  default     = ["s3"]
}
