variable "name" {
  description = "Name of the cluster."
  type        = string
}

variable "tags" {
  description = "Tags of every resource."
  type        = map(string)
}

variable "bucket" {
  description = "Bucket of the cluster."
  type        = string
}

variable "prefix" {
  description = "Prefix of the cluster in the bucket, which jobs compact, merge and sweep."
  type        = string
}

variable "store" {
  description = "The cluster's place as jobs take it: the address of its prefix, with settings of encryption at its end."
  type        = string
}

variable "tables_prefix" {
  description = "Prefix of the Delta tables, which jobs write."
  type        = string
}

variable "kms_key_arn" {
  description = "KMS key of the bucket."
  type        = string
}

variable "services" {
  description = "AWS services that may take Airflow's role: ec2.amazonaws.com for one of your own, airflow-env.amazonaws.com and airflow.amazonaws.com for MWAA."
  type        = list(string)
}

variable "bootstrap_servers" {
  description = "Bootstrap servers of the cluster."
  type        = string
}

variable "host" {
  description = "An instance that runs Airflow: where, of what kind, with which package (its folder has a folder airflow with wheels and DAGs), the Variable lakehead_dags, and who reaches its page; null: none."
  type = object({
    vpc_id                    = string
    subnet_id                 = string
    ami_id                    = string
    architecture              = string
    instance_type             = string
    root_gib                  = number
    volume_kms_key_arn        = optional(string)
    port                      = number
    parallelism               = number
    dags                      = string
    lakehead_wheel            = string
    package_sha256            = string
    package_kms_key_arn       = optional(string)
    package_region            = string
    client_cidrs              = map(string)
    client_security_group_ids = optional(map(string), {})
    dns_cidrs                 = optional(map(string), {})
    https_egress_cidrs        = map(string)
    kafka_ports               = object({ first = number, last = number })
    broker_security_group_id  = string
    session_manager           = bool
  })
  default = null
}

variable "node_keys" {
  description = "KMS keys by which nodes encrypt at rest: that of new data, and all that data may have; null: none."
  type        = object({ current = string, all = list(string), cluster = string })
  default     = null
}
