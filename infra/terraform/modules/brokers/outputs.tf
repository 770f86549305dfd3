output "instance_ids" {
  description = "Instance of each slot."
  value       = { for slot, instance in aws_instance.host : slot => instance.id }
}

output "revisions" {
  description = "Of each slot, of what its instance is made (now), and of what one made today would be (next)."
  value = {
    for slot, instance in aws_instance.host : slot => {
      now  = lookup(instance.tags_all, "lakehead:revision", local.revisions[slot])
      next = local.revisions[slot]
    }
  }
}

output "wal_modes" {
  description = "WAL mode that each slot's instance was made for."
  value       = { for slot, instance in aws_instance.host : slot => lookup(instance.tags_all, "lakehead:wal-mode", var.wal_mode) }
}

output "node_ids" {
  description = "First node id that each slot's instance was made with."
  value       = { for slot, instance in aws_instance.host : slot => instance.tags["lakehead:node-id"] }
}

output "private_ips" {
  description = "Address of each slot; it stays when the instance is replaced."
  value       = { for slot, interface in aws_network_interface.host : slot => interface.private_ip }
}

output "broker_policy_json" {
  description = "IAM policy of the brokers."
  value       = local.broker_policy_json
}

output "settings_toml" {
  description = "Settings of all hosts, as they are in the bucket."
  value       = local.settings_toml
}

output "settings" {
  description = "Place of the settings of all hosts, their version (the first digits of their SHA-256), and the version that each host has reported."
  value = {
    address  = "s3://${var.bucket}/${local.settings_key}"
    version  = local.settings_version
    reported = { for slot, versions in local.settings_versions : slot => versions[0] }
  }
}

output "agent_config" {
  description = "Configuration of the hosts' CloudWatch agent, as in the bucket."
  value       = aws_s3_object.agent.content
}

output "identity_toml" {
  description = "Settings that are each slot's own, in its user data."
  value       = local.identity_toml
}

output "user_data" {
  description = "Cloud-init user data of each slot."
  value       = local.user_data
}

output "imds" {
  description = "Metadata options of each instance."
  value       = { for slot, instance in aws_instance.host : slot => instance.metadata_options[0].http_tokens }
}

output "vcpus" {
  description = "Cores of the instance type."
  value       = data.aws_ec2_instance_type.this.default_vcpus
}

output "role_name" {
  description = "Role of the brokers."
  value       = aws_iam_role.broker.name
}

output "instance_profile_name" {
  description = "Instance profile with that role."
  value       = aws_iam_instance_profile.broker.name
}

output "ami_id" {
  description = "Image of the hosts."
  value       = terraform_data.ami.output
}

output "racks" {
  description = "The setting broker.rack of each slot: the id of its zone."
  value       = { for slot, host in var.slots : slot => data.aws_availability_zone.each[host.zone].zone_id }
}

output "group_user_data" {
  description = "Cloud-init user data of hosts that an auto-scaling group starts; null without group_wal."
  value       = lookup(local.user_data, "group", null)
  depends_on  = [aws_s3_object.settings, aws_s3_object.agent]
}

output "architecture" {
  description = "Architecture of the hosts and their packages."
  value       = local.architecture
}

output "package_region" {
  description = "Region of the bucket with the package."
  value       = local.package_region

  precondition {
    condition     = var.reaches_other_regions || local.package_region == data.aws_region.current.name
    error_message = "Bucket ${local.wheel_place[0]}, where lakehead_wheel lies, is in ${local.package_region}, and the S3 endpoint of a VPC leads to its own Region only. Copy the folder into a bucket of ${data.aws_region.current.name}, or give hosts another way (existing_vpc.services = \"nat\", or https_egress_cidrs)."
  }
}
