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
  description = "Prefix of the cluster in the bucket, which Spark reads."
  type        = string
}

variable "tables_prefix" {
  description = "Prefix of the Delta tables, which Spark writes."
  type        = string
}

variable "kms_key_arn" {
  description = "KMS key of the bucket."
  type        = string
}

variable "services" {
  description = "AWS services that may take Spark's role: ec2.amazonaws.com for EMR on EC2, emr-serverless.amazonaws.com."
  type        = list(string)
}

variable "role_arns" {
  description = "Roles that may take Spark's role, such as a Databricks workspace's."
  type        = list(string)
}

variable "databricks" {
  description = "Storage credential of Databricks (Unity Catalog) that may take Spark's role: its external id, and Databricks' role; null: none."
  type        = object({ external_id = string, role_arn = string })
}

variable "glue_database" {
  description = "Name of a Glue database for the tables; null: none."
  type        = string
}

variable "node_keys" {
  description = "KMS keys by which nodes encrypt at rest: that of new data, and all that data may have; null: none."
  type        = object({ current = string, all = list(string), cluster = string })
  default     = null
}
