output "vpc_id" {
  description = "Id of the VPC."
  value       = local.vpc_id
}

output "vpc_cidr" {
  description = "IPv4 range of the VPC."
  value       = local.vpc_cidr
}

output "subnet_ids" {
  description = "Id of the subnet of each zone."
  value       = local.create ? local.subnet_ids : { for zone, subnet in data.aws_subnet.existing : zone => subnet.id }
}
