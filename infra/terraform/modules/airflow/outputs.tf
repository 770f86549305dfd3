output "connection_uri" {
  description = "Airflow's connection, as AIRFLOW_CONN_LAKEHEAD_DEFAULT takes it."
  value       = local.connection_uri
}

output "connection_parameter" {
  description = "Name of the parameter that holds the connection, for Airflow's Systems Manager backend."
  value       = aws_ssm_parameter.connection.name
}

output "airflow_role_arn" {
  description = "Role of Airflow's workers."
  value       = aws_iam_role.airflow.arn
}

output "airflow_policy_json" {
  description = "IAM policy of Airflow's workers."
  value       = local.airflow_policy_json
}

output "url" {
  description = "Address of Airflow's page inside the VPC; null without a host."
  value       = one([for interface in aws_network_interface.airflow : "http://${interface.private_ip}:${var.host.port}"])
}

output "instance_id" {
  description = "Airflow's instance; null without a host."
  value       = one([for host in aws_instance.airflow : host.id])
}

output "password_secret" {
  description = "Name of the secret with the administrator's password, {\"admin\": \"...\"}; null without a host."
  value       = one([for secret in aws_secretsmanager_secret.password : secret.name])
}

output "user_data" {
  description = "Cloud-init user data of the host; null without one."
  value       = local.user_data
}

output "ingress" {
  description = "Ranges that reach Airflow's page."
  value       = local.in_rules
}

output "metadata" {
  description = "Protection of the host: IMDSv2, encryption; null without one."
  value = one([for host in aws_instance.airflow : {
    tokens    = host.metadata_options[0].http_tokens
    encrypted = host.root_block_device[0].encrypted
  }])
}

output "https_egress" {
  description = "Ranges that the instance reaches by HTTPS in addition to S3."
  value       = { for name, rule in aws_vpc_security_group_egress_rule.https : name => rule.cidr_ipv4 }
}

output "dns_egress" {
  description = "DNS servers that the instance reaches, by protocol and name."
  value       = { for name, rule in aws_vpc_security_group_egress_rule.dns : name => rule.cidr_ipv4 }
}

output "trust_json" {
  description = "Principals that may take Airflow's role."
  value       = aws_iam_role.airflow.assume_role_policy
}
