output "bootstrap_servers" {
  description = "bootstrap.servers of the clients."
  value       = "${var.domain}:${var.ports.bootstrap}"
}

output "endpoint_id" {
  description = "Id of the endpoint, by which the cluster's account accepts it."
  value       = aws_vpc_endpoint.this.id
}

output "security_group_id" {
  description = "Security group of the endpoint."
  value       = aws_security_group.endpoint.id
}

output "names" {
  description = "Names in the private zone, each with the name of the endpoint that it stands for."
  value = merge(
    { (var.domain) = one(aws_route53_record.bootstrap.alias[*].name) },
    { for rack, record in aws_route53_record.rack : record.name => one(record.alias[*].name) },
  )
}
