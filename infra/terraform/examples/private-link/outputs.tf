output "cluster" {
  description = "All that the next steps need: bootstrap servers, store, Spark's options, Airflow's connection, cost."
  value       = module.lakehead
}

output "private_link" {
  description = "Values for clients of other accounts; client is the variable cluster of examples/private-link-client."
  value       = module.lakehead.private_link
}
