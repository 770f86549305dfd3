output "prometheus_targets" {
  description = "Metrics pages of all nodes, as targets of a Prometheus static_config."
  value       = local.targets
}

output "dashboard" {
  description = "Name of the CloudWatch dashboard."
  value       = aws_cloudwatch_dashboard.this.dashboard_name
}

output "prometheus_config" {
  description = "Configuration of a Prometheus that finds all nodes, and loads prometheus_rules."
  value       = local.prometheus_config
}

output "prometheus_rules" {
  description = "Alerts for Prometheus."
  value       = file("${path.module}/rules.yaml")
}

output "prometheus_policy_json" {
  description = "IAM policy that such a Prometheus needs to find the hosts."
  value       = local.prometheus_policy_json
}

output "alarms" {
  description = "How many alarms there are."
  value       = length(local.instances) + (length(var.volume_ids) > 0 ? 3 : 1) * length(var.slots) + length(local.group_alarms)
}

output "dashboard_json" {
  description = "What the dashboard shows."
  value       = aws_cloudwatch_dashboard.this.dashboard_body
}
