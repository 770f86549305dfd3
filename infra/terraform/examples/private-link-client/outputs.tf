output "bootstrap_servers" {
  description = "bootstrap.servers of the clients."
  value       = module.client_endpoint.bootstrap_servers
}

output "endpoint_id" {
  description = "Id of the endpoint, which the cluster's account accepts."
  value       = module.client_endpoint.endpoint_id
}
