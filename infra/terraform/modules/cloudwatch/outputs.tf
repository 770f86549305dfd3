output "log_groups" {
  description = "Names of the log groups: journal, metrics."
  value       = { for kind, group in aws_cloudwatch_log_group.this : kind => group.name }
}

output "agent_config" {
  description = "Configuration of a host's agent, two lines of JSON: its own, and its scrape targets. @HOST@ in it stands for the host's id."
  value       = "${jsonencode(local.agent)}\n${jsonencode(local.scrape)}\n"
}

output "namespace" {
  description = "Namespace of the brokers' metrics."
  value       = local.namespace
}

output "cluster" {
  description = "Dimension `cluster` of these metrics."
  value       = local.unique
}

output "metrics" {
  description = "Names of these metrics."
  value       = var.metrics ? keys(local.metrics) : []
}

output "kept" {
  description = "Of each log group, how many days it keeps, and by which key (null: CloudWatch's own)."
  value       = { for kind, group in aws_cloudwatch_log_group.this : kind => { days = group.retention_in_days, key = group.kms_key_id } }
}
