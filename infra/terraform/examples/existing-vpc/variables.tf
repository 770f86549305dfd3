variable "region" {
  description = "AWS region."
  type        = string
  default     = "us-east-1"

  validation {
    condition     = can(regex("^[a-z]{2}(-[a-z]+)+-[0-9]$", var.region))
    error_message = "region is a region's name, such as us-east-1."
  }
}

variable "bucket" {
  description = "Name of the bucket that is made for the cluster; the names of buckets are shared by all of AWS."
  type        = string
}

variable "lakehead_wheel" {
  description = "Lakehead's wheel, in a folder of a bucket of yours with the wheels that it needs."
  type        = string
}

variable "package_sha256" {
  description = "SHA-256 of SHA256SUMS in that folder."
  type        = string
}

variable "vpc_id" {
  description = "The VPC."
  type        = string
}

variable "subnet_id" {
  description = "A private subnet in the region's first zone."
  type        = string
}

variable "services" {
  description = "Way of hosts to EC2 (their volumes) and Secrets Manager there: endpoints (the VPC has interface endpoints of ec2 and secretsmanager) or nat."
  type        = string
  default     = "endpoints"
}

variable "route_table_ids" {
  description = "Route tables that are to get an S3 gateway endpoint; none if the subnet has a way to S3."
  type        = list(string)
  default     = []
}
