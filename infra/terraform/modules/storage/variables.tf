variable "name" {
  description = "Name of the cluster."
  type        = string
}

variable "tags" {
  description = "Tags of every resource."
  type        = map(string)
}

variable "bucket" {
  description = "Name of the bucket that is made."
  type        = string
}

variable "kms_key_arn" {
  description = "KMS key that encrypts what is written to the bucket; null: the cluster's own."
  type        = string
  default     = null
}

variable "own_kms_key" {
  description = "Give the cluster a key of its own, which is kept as long as data encrypted by it may exist."
  type        = bool
  default     = true
}

variable "node_key" {
  description = "Make a key by which nodes encrypt (encryption at rest by the client), kept as the first one is."
  type        = bool
  default     = false
}

variable "force_destroy" {
  description = "Allow destroy to delete a bucket with data in it, and the cluster's own keys that encrypt the data."
  type        = bool
  default     = false
}

variable "abort_multipart_days" {
  description = "Days after which an upload in parts that never ended is removed."
  type        = number
  default     = 7
}

variable "access_log_bucket" {
  description = "Existing bucket that receives S3's access logs; null: none."
  type        = string
  default     = null
}

variable "express_zone" {
  description = "Zone of a directory bucket (S3 Express) for the write-ahead log; null: none."
  type        = string
  default     = null
}

variable "express_zone_ids" {
  description = "Ids of the zones where S3 Express is on offer."
  type        = set(string)
  default     = []
}
