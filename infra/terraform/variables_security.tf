variable "security" {
  description = "Security of the brokers' listeners. protocol SASL_SSL: clients come by TLS and SCRAM-SHA-512 and need access rules, nodes show certificates to each other at node_port (the others count up from it), and hosts take certificates and the password of admin, the first user, from Secrets Manager. PLAINTEXT: neither encryption nor authentication. It is for a network that only trusted hosts reach, and has to be chosen. Running hosts keep their protocol."
  type = object({
    protocol  = optional(string, "SASL_SSL")
    admin     = optional(string, "admin")
    node_port = optional(number, 9292)
  })
  default  = {}
  nullable = false

  validation {
    condition     = contains(["SASL_SSL", "PLAINTEXT"], var.security.protocol)
    error_message = "security.protocol is SASL_SSL or PLAINTEXT. For other listeners leave SASL_SSL and give listener.security.protocol.map and more in settings."
  }
  validation {
    condition     = can(regex("^[A-Za-z0-9._@-]{1,64}$", var.security.admin))
    error_message = "security.admin is the name of the first user: letters, digits and . _ @ -, at most 64."
  }
  validation {
    condition     = var.security.node_port >= 1024 && var.security.node_port <= 65000 && floor(var.security.node_port) == var.security.node_port
    error_message = "security.node_port is a whole number from 1024 to 65000."
  }
  validation {
    condition     = var.security.protocol == "PLAINTEXT" || alltrue([for port in [var.kafka_port, var.metrics_port, try(var.private_link.target_port, 1)] : abs(var.security.node_port - port) >= 100])
    error_message = "security.node_port, kafka_port, metrics_port and private_link.target_port lie 100 or more apart: all count up by node."
  }
}

variable "encryption" {
  description = "Encryption at rest by the nodes, beneath that of bucket and volumes: they encrypt by a KMS key of yours (kms_key_arn) or one of the cluster's own, and roles of Spark and Airflow may decrypt. own_key keeps the cluster's own beside kms_key_arn; earlier_kms_key_arns are keys of yours that data still have. enabled = false: nodes have the keys and write plain data, which is the first step of a running cluster. required: nodes and readers refuse plain data, once there is none. null: no keys."
  type = object({
    enabled              = optional(bool, true)
    kms_key_arn          = optional(string)
    own_key              = optional(bool)
    earlier_kms_key_arns = optional(set(string), [])
    required             = optional(bool, false)
  })
  default = null

  validation {
    condition     = var.encryption == null ? true : alltrue([for arn in concat(compact([var.encryption.kms_key_arn]), tolist(var.encryption.earlier_kms_key_arns)) : can(regex("^arn:aws[a-z-]*:kms:[a-z0-9-]+:[0-9]{12}:key/.+$", arn))])
    error_message = "encryption.kms_key_arn and earlier_kms_key_arns are ARNs of keys (not of aliases), such as arn:aws:kms:us-east-1:123456789012:key/..."
  }
  validation {
    condition     = var.encryption == null ? true : var.encryption.kms_key_arn == null || var.encryption.own_key != null
    error_message = "encryption.kms_key_arn is given. If nodes encrypted without it, add own_key = true: that data stays readable by the cluster's own key. If encryption begins with kms_key_arn, add own_key = false."
  }
  validation {
    condition     = var.encryption == null ? true : var.encryption.kms_key_arn != null || var.encryption.own_key != false
    error_message = "encryption.own_key = false needs kms_key_arn: without a key of its own the cluster needs one of yours."
  }
  validation {
    condition     = var.encryption == null ? true : var.encryption.enabled || !var.encryption.required
    error_message = "encryption.required refuses plain data, and enabled = false writes it."
  }
  validation {
    condition     = var.encryption == null ? true : alltrue([for arn in compact([var.encryption.kms_key_arn]) : startswith(var.zones[0], try(split(":", arn)[3], ""))])
    error_message = "encryption.kms_key_arn lies in another region than zones, where hosts have no way to it."
  }
}
