output "vpc_id" {
  description = "Id of the VPC."
  value       = local.vpc_id
}

output "vpc_cidrs" {
  description = "IPv4 ranges of the VPC, the primary one first."
  value       = local.vpc_cidrs
}

output "subnet_ids" {
  description = "Id of the subnet of each zone."
  value       = local.create ? local.subnet_ids : { for zone, subnet in data.aws_subnet.existing : zone => subnet.id }
}
