# Listeners with TLS, SCRAM and access rules (var.security). Settings name files; hosts write them from
# Secrets Manager (`lakehead settings secrets`), so no secret passes through here.

locals {
  is_secured = var.security.protocol != "PLAINTEXT"

  secured_settings = {
    "listeners"                      = "CLIENTS://0.0.0.0:${var.kafka_port},NODES://0.0.0.0:${var.security.node_port}"
    "listener.security.protocol.map" = join(",", concat(["CLIENTS:${var.security.protocol}", "NODES:SSL"], var.private_link == null ? [] : ["LINK:${var.security.protocol}"]))
    "inter.broker.listener.name"     = "NODES"
    "sasl.enabled.mechanisms"        = "SCRAM-SHA-512"
    "ssl.keystore.location"          = "/run/lakehead/host.pem"
    "ssl.truststore.location"        = "/run/lakehead/ca.pem"
    "authorizer.class.name"          = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
    "super.users"                    = "User:${var.security.admin}"
  }
  security_settings = { for name, value in local.secured_settings : name => value if local.is_secured }

  # By all that clients and nodes connect to. Addresses belong to slots, so that they outlast hosts.
  certificate_names = distinct(concat(
    [for slot in sort(keys(local.addresses)) : local.addresses[slot]],
    var.bootstrap == "addresses" ? [] : [split(":", module.bootstrap.bootstrap_servers)[0]],
    var.private_link == null ? [] : sort(keys(module.private_link[0].names)),
  ))
}

output "certificate_names" {
  description = "Addresses and names that the hosts' certificate needs as subject alternative names: of hosts, or with scaling of all slots, of the bootstrap and of private_link."
  value       = local.certificate_names
}

output "secrets" {
  description = "Names of the secrets that hosts read, whose values are put in by hand: tls (JSON with ca, certificate, key) and first-admin (JSON with password); none with PLAINTEXT."
  value       = module.security.secret_names
}
