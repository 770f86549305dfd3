variable "name" {
  description = "Name of the cluster."
  type        = string
}

variable "tags" {
  description = "Tags of every resource."
  type        = map(string)
}

variable "slots" {
  description = "Hosts by slot: zone, subnet and the id of the first node."
  type        = map(object({ zone = string, subnet_id = string, node_id = number }))
}

variable "instance_type" {
  description = "EC2 instance type of every host."
  type        = string
}

variable "ami_id" {
  description = "Machine image with dnf, cloud-init and the AWS CLI; null: the newest Amazon Linux 2023 at the first apply, kept from then on."
  type        = string
  default     = null
}

variable "ami_release" {
  description = "A text whose change takes the newest Amazon Linux 2023; null: that of the first apply stays."
  type        = string
  default     = null
}

variable "root_gib" {
  description = "Size of the root volume in GiB."
  type        = number
}

variable "nodes_per_host" {
  description = "Nodes of a host; 0: one for each core."
  type        = number
}

variable "node_ids_per_host" {
  description = "Number of node ids that are reserved for each host."
  type        = number
}

variable "security_group_id" {
  description = "Security group of the brokers."
  type        = string
}

variable "bucket" {
  description = "Bucket of the cluster."
  type        = string
}

variable "prefix" {
  description = "Prefix of the cluster in the bucket."
  type        = string
}

variable "kms_key_arn" {
  description = "KMS key of what is written to the bucket."
  type        = string
}

variable "volume_kms_key_arn" {
  description = "KMS key of root volumes; null: the account's key of EBS."
  type        = string
  default     = null
}

variable "wal_uris" {
  description = "The setting `wal` of each slot."
  type        = map(string)
}

variable "wal_mode" {
  description = "object, io2-multi-attach or gp3: which permissions of EC2 brokers have, and whether they fence other hosts by persistent reservations, for which kernel 6.1 wants CAP_SYS_ADMIN."
  type        = string
}

variable "wal_volume_ids" {
  description = "WAL volume of each slot, which brokers find by its tags; none with an object WAL."
  type        = map(string)
}

variable "group_wal" {
  description = "The setting `wal` of hosts that an auto-scaling group starts; null: there is no group."
  type        = string
  default     = null
}

variable "kafka_port" {
  description = "Port of the first node of a host."
  type        = number
}

variable "metrics_port" {
  description = "Port of the first node's metrics page."
  type        = number
}

variable "settings" {
  description = "Further settings of the brokers."
  type        = map(string)
}

variable "lakehead_wheel" {
  description = "s3:// or https:// address of Lakehead's wheel."
  type        = string
}

variable "package_sha256" {
  description = "SHA-256 of SHA256SUMS in the wheel's folder, or of a wheel by https."
  type        = string
}

variable "package_kms_key_arn" {
  description = "KMS key of the bucket with the wheel; null: it has none of its own, or is that of the cluster."
  type        = string
  default     = null
}

variable "reaches_other_regions" {
  description = "Hosts can reach S3 of other Regions."
  type        = bool
  default     = false
}

variable "secret_arns" {
  description = "Secrets that hosts read: tls and first-admin; none: they read none."
  type        = map(string)
  default     = {}
}

variable "first_admin" {
  description = "Name of the first user, whose password is the secret first-admin."
  type        = string
  default     = "admin"
}

variable "session_manager" {
  description = "Allow sessions on hosts by AWS Systems Manager."
  type        = bool
}

variable "wal_bucket" {
  description = "Directory bucket of the write-ahead log; null: none."
  type        = string
  default     = null
}

variable "agent_config" {
  description = "Configuration of the CloudWatch agent of each host: two lines of JSON, its own and its scrape targets, or \"off\"."
  type        = string
  default     = "off\n"
}

variable "log_groups" {
  description = "Log groups that hosts write to."
  type        = list(string)
  default     = []
}

variable "node_keys" {
  description = "KMS keys by which nodes encrypt at rest: that of new data, and all that data may have; null: none."
  type        = object({ current = string, all = list(string), cluster = string })
  default     = null
}
