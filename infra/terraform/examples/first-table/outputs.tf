output "cluster" {
  description = "All that the next steps need: bootstrap servers, store, Spark's options, Airflow, Prometheus."
  value       = module.lakehead
}

output "monthly_cost_estimate" {
  description = "Dollars a month, known when the plan is."
  value       = module.lakehead.monthly_cost_estimate
}
