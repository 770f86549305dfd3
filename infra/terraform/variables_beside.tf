# What is made beside the brokers, and what the cost estimate goes by.

variable "spark" {
  description = "Make a role for Spark, which the given services (EMR on EC2: ec2.amazonaws.com; emr-serverless.amazonaws.com), roles and a storage credential of Databricks (its external id) may take; null: none."
  type = object({
    services  = optional(list(string), [])
    role_arns = optional(list(string), [])
    databricks = optional(object({
      external_id = string
      role_arn    = optional(string, "arn:aws:iam::414351767826:role/unity-catalog-prod-UCMasterRole-14S5ZJVKOTYTL")
    }))
    glue_database = optional(string)
  })
  default = null

  validation {
    condition     = var.spark == null ? true : length(var.spark.services) + length(var.spark.role_arns) > 0 || var.spark.databricks != null
    error_message = "spark needs services, role_arns or databricks: nobody could take the role."
  }
  validation {
    condition     = try(var.spark.databricks, null) == null ? true : can(regex("^[A-Za-z0-9+=,.@:/_-]{2,}$", var.spark.databricks.external_id)) && can(regex("^arn:aws[a-z-]*:iam::[0-9]{12}:role/.+$", var.spark.databricks.role_arn))
    error_message = "spark.databricks has the external_id that the storage credential shows, and role_arn is the ARN of Databricks' role."
  }
  validation {
    condition     = var.spark == null ? true : alltrue([for service in var.spark.services : can(regex("^[a-z0-9.-]+\\.amazonaws\\.com(\\.cn)?$", service))])
    error_message = "spark.services are names such as emr-serverless.amazonaws.com."
  }
  validation {
    condition     = var.spark == null ? true : alltrue([for arn in var.spark.role_arns : can(regex("^arn:aws[a-z-]*:iam::[0-9]{12}:(role/.+|root)$", arn))])
    error_message = "spark.role_arns are ARNs of IAM roles."
  }
  validation {
    condition     = try(var.spark.glue_database, null) == null ? true : can(regex("^[a-z0-9_]{1,255}$", var.spark.glue_database))
    error_message = "spark.glue_database is small letters, digits and underscores."
  }
}

variable "airflow_services" {
  description = "Make a role and a connection for Airflow, for these services: ec2.amazonaws.com, or airflow-env.amazonaws.com and airflow.amazonaws.com (MWAA); empty: none."
  type        = list(string)
  default     = []

  validation {
    condition     = alltrue([for service in var.airflow_services : can(regex("^[a-z0-9.-]+\\.amazonaws\\.com(\\.cn)?$", service))])
    error_message = "airflow_services are names such as ec2.amazonaws.com."
  }
}

variable "airflow_host" {
  description = "Run Airflow on a further instance, with the package and the DAGs in the folder airflow next to lakehead_wheel; package_sha256 is the SHA-256 of the folder's SHA256SUMS; dags is the Variable lakehead_dags, JSON; null: none."
  type = object({
    instance_type = optional(string)
    root_gib      = optional(number, 32)
    port          = optional(number, 8080)
    parallelism   = optional(number, 4)
    dags          = optional(string, "{}")

    package_sha256 = string
  })
  default = null

  validation {
    condition     = var.airflow_host == null ? true : startswith(var.lakehead_wheel, "s3://")
    error_message = "airflow_host wants lakehead_wheel in S3, with the folder airflow beside it: Airflow's packages come from there."
  }
  validation {
    condition     = var.airflow_host == null || var.existing_vpc != null || var.security.protocol != "PLAINTEXT" || contains(var.interface_endpoints, "secretsmanager")
    error_message = "Without SASL_SSL airflow_host needs interface_endpoints with secretsmanager in a new VPC: the host puts its first password there, and has no other way."
  }
  validation {
    condition     = var.airflow_host == null ? true : can(regex("^[0-9a-f]{64}$", var.airflow_host.package_sha256))
    error_message = "airflow_host.package_sha256 is 64 hexadecimal digits, as `sha256sum airflow/SHA256SUMS` prints them."
  }
  validation {
    condition     = var.airflow_host == null ? true : can(keys(jsondecode(var.airflow_host.dags)))
    error_message = "airflow_host.dags is a JSON object, as docs/airflow.md describes the Variable lakehead_dags: jsonencode({ ... })."
  }
  validation {
    condition     = var.airflow_host == null ? true : var.airflow_host.root_gib >= 16 && var.airflow_host.root_gib <= 1024
    error_message = "airflow_host.root_gib is 16 (packages take 3 GiB while they are installed, logs the rest) to 1024."
  }
  validation {
    condition     = var.airflow_host == null ? true : var.airflow_host.port >= 1024 && var.airflow_host.port <= 65000 && var.airflow_host.parallelism >= 1 && var.airflow_host.parallelism <= 64
    error_message = "airflow_host.port is 1024 to 65000 and parallelism (tasks at once) 1 to 64."
  }
}

variable "observability" {
  description = "Make CloudWatch alarms and a dashboard."
  type        = bool
  default     = true
}

variable "cloudwatch" {
  description = "Ship by the CloudWatch agent of each host the journal of its units (logs) and the brokers' metrics (metrics). CloudWatch keeps both for retention_days, encrypted by kms_key_arn, whose policy has to let CloudWatch Logs use it (null: by CloudWatch's own key). null: no agent runs."
  type = object({
    logs           = optional(bool, true)
    metrics        = optional(bool, true)
    retention_days = optional(number, 30)
    kms_key_arn    = optional(string)
  })
  default = null

  validation {
    condition     = var.cloudwatch == null ? true : var.cloudwatch.logs || var.cloudwatch.metrics
    error_message = "cloudwatch ships logs, metrics or both: with neither, leave it null."
  }
  validation {
    condition     = var.cloudwatch == null ? true : contains([1, 3, 5, 7, 14, 30, 60, 90, 120, 150, 180, 365, 400, 545, 731, 1096, 1827, 2192, 2557, 2922, 3288, 3653], var.cloudwatch.retention_days)
    error_message = "cloudwatch.retention_days is one of those that CloudWatch knows: 1, 3, 5, 7, 14, 30, 60, 90, 120, 150, 180, 365, 400, 545, 731, 1096, 1827, 2192, 2557, 2922, 3288 or 3653."
  }
  validation {
    condition     = try(var.cloudwatch.kms_key_arn, null) == null ? true : can(regex("^arn:aws[a-z-]*:kms:[a-z0-9-]+:[0-9]{12}:key/.+$", var.cloudwatch.kms_key_arn))
    error_message = "cloudwatch.kms_key_arn is the ARN of a key, not of an alias."
  }
}

variable "self_healing" {
  description = "Bring fixed hosts back automatically: recover them on other hardware, reboot them when they hang, start them when they were stopped, by alarms ($0.20 a month for each host) and a rule. False while you keep a host stopped."
  type        = bool
  default     = true
}

variable "alarm_topic_arns" {
  description = "SNS topics that get the alarms."
  type        = list(string)
  default     = []

  validation {
    condition     = alltrue([for arn in var.alarm_topic_arns : can(regex("^arn:aws[a-z-]*:sns:[a-z0-9-]+:[0-9]{12}:.+$", arn))])
    error_message = "alarm_topic_arns are ARNs of SNS topics."
  }
  validation {
    condition     = length(var.alarm_topic_arns) == 0 || var.observability
    error_message = "alarm_topic_arns has topics, and observability is false: there are no alarms to tell of."
  }
}

variable "expected_traffic" {
  description = "Basis of the cost estimate: MiB/s that producers send (compressed), days that records are kept, number of groups that read everything."
  type = object({
    mib_per_second = optional(number, 10)
    retention_days = optional(number, 7)
    readers        = optional(number, 2)
  })
  default = {}

  validation {
    condition     = var.expected_traffic.mib_per_second >= 0 && var.expected_traffic.retention_days >= 0 && var.expected_traffic.readers >= 0
    error_message = "expected_traffic has no negative numbers."
  }
}

variable "prices" {
  description = "Prices in dollars of the cost estimate: list prices of us-east-1. instance_hour (of the hosts) and airflow_hour null: by a table of common families; an instance type that is not in it makes the estimate null. spot_share is the share of that price for a spot instance: a guess."
  type = object({
    instance_hour    = optional(number)
    airflow_hour     = optional(number)
    io2_gib          = optional(number, 0.125)
    io2_iops         = optional(list(number), [0.065, 0.046, 0.032])
    gp3_gib          = optional(number, 0.08)
    gp3_iops         = optional(number, 0.005)
    gp3_mibps        = optional(number, 0.04)
    s3_gib           = optional(number, 0.023)
    s3_puts_1000     = optional(number, 0.005)
    s3_gets_1000     = optional(number, 0.0004)
    cross_zone_gib   = optional(number, 0.02)
    kms_key          = optional(number, 1)
    secret           = optional(number, 0.4)
    alarm            = optional(number, 0.1)
    dashboard        = optional(number, 3)
    metric           = optional(number, 0.3)
    endpoint_by_zone = optional(number, 7.3)
    spot_share       = optional(number, 0.4)
    dns_zone         = optional(number, 0.5)
    nlb              = optional(number, 16.43)

    detailed_monitoring = optional(number, 2.1)
  })
  default = {}

  validation {
    condition     = length(var.prices.io2_iops) == 3
    error_message = "prices.io2_iops has three prices of an IOPS: up to 32,000, up to 64,000, and above."
  }
}
