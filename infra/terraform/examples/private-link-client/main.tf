# In the account of the clients: an endpoint in their VPC, and the names that brokers tell them.
module "client_endpoint" {
  source = "../../modules/client_endpoint"

  name         = "lakehead-clients"
  service_name = var.cluster.service_name
  domain       = var.cluster.domain
  racks        = var.cluster.racks
  ports        = var.cluster.ports
  vpc_id       = var.vpc_id
  subnet_ids   = var.subnet_ids
  client_cidrs = var.client_cidrs
}
