output "cluster" {
  description = "All that the next steps need: bootstrap servers, store, Spark's options, Airflow's connection, cost."
  value       = module.lakehead
}

output "private_link" {
  description = "What clients of other accounts need; client is the variable cluster of examples/private-link-client."
  value       = module.lakehead.private_link
}
