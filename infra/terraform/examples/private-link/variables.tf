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

variable "domain" {
  description = "Name for clients. It need not be in any public DNS: the clients' side makes it in a private zone."
  type        = string
  default     = "lake.example.com"
}

variable "allowed_principals" {
  description = "ARNs of the accounts, roles or users that may make an endpoint, such as arn:aws:iam::210987654321:root."
  type        = list(string)
}
