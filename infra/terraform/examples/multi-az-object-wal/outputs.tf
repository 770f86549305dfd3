output "cluster" {
  description = "All that the next steps need: bootstrap servers, store, Spark's options, Airflow's connection, cost."
  value       = module.lakehead
}
