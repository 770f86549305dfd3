output "spark_role_arn" {
  description = "Role of Spark."
  value       = aws_iam_role.spark.arn
}

output "spark_policy_json" {
  description = "IAM policy of Spark."
  value       = local.spark_policy_json
}

output "spark_trust_json" {
  description = "Principals that may take Spark's role."
  value       = local.trust_json
}

output "spark_instance_profile" {
  description = "Instance profile with Spark's role, for EMR on EC2; null without ec2.amazonaws.com among services."
  value       = one(aws_iam_instance_profile.spark[*].name)
}

output "glue_database" {
  description = "Glue database of the tables; null without one."
  value       = one(aws_glue_catalog_database.tables[*].name)
}
