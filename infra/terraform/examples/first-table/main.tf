# What docs/deploy.md makes: one host in one zone, its WAL in the bucket, and beside it an instance with
# Airflow, which keeps tables and which one enters by Session Manager.
module "lakehead" {
  source = "../.."

  name                = "lakehead" # each cluster of an account has its own
  zones               = ["${var.region}a"]
  wal_mode            = "object"
  wal_puts_budget     = 20
  bucket              = var.bucket
  lakehead_wheel      = var.lakehead_wheel
  package_sha256      = var.package_sha256
  session_manager     = true
  interface_endpoints = ["ssm", "ssmmessages", "secretsmanager"]
  airflow_host        = { package_sha256 = var.airflow_sha256 }
  spark               = { services = ["emr-serverless.amazonaws.com"] }
  expected_traffic    = { mib_per_second = 1, retention_days = 7, readers = 1 }
}
