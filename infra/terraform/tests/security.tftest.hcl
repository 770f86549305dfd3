# Listeners with TLS, SCRAM and access rules, which is what a cluster has unless PLAINTEXT is chosen.

mock_provider "aws" {
  source = "./tests/mocks"
}

variables {
  nodes_per_host = 2
  observability  = false
  self_healing   = false
}

override_resource {
  target = module.security.aws_secretsmanager_secret.this["tls"]
  values = { arn = "arn:aws:secretsmanager:us-east-1:123456789012:secret:lakehead/tls-AbCdEf" }
}

override_resource {
  target = module.security.aws_secretsmanager_secret.this["first-admin"]
  values = { arn = "arn:aws:secretsmanager:us-east-1:123456789012:secret:lakehead/first-admin-GhIjKl" }
}

run "a_cluster_is_secured_by_default" {
  assert {
    condition = alltrue([for line in [
      "\"listeners\" = \"CLIENTS://0.0.0.0:9092,NODES://0.0.0.0:9292\"",
      "\"listener.security.protocol.map\" = \"CLIENTS:SASL_SSL,NODES:SSL\"",
      "\"inter.broker.listener.name\" = \"NODES\"",
      "\"sasl.enabled.mechanisms\" = \"SCRAM-SHA-512\"",
      "\"ssl.keystore.location\" = \"/run/lakehead/host.pem\"",
      "\"ssl.truststore.location\" = \"/run/lakehead/ca.pem\"",
      "\"authorizer.class.name\" = \"org.apache.kafka.metadata.authorizer.StandardAuthorizer\"",
      "\"super.users\" = \"User:admin\"",
    ] : strcontains(module.brokers.settings_toml, "${line}\n")])
    error_message = module.brokers.settings_toml
  }
  assert {
    condition     = !strcontains(module.brokers.settings_toml, "PLAINTEXT") && !strcontains(module.brokers.settings_toml, "secret") && !strcontains(module.brokers.settings_toml, "password")
    error_message = "settings name files, and no secret: ${module.brokers.settings_toml}"
  }
  assert {
    condition     = module.security.node_ingress == { first_port = 9292, last_port = 9293, group = module.security.security_group_id } && length([for rule in module.security.ingress : rule if rule.last_port >= 9292 && rule.first_port <= 9293]) == 0
    error_message = "the listener between nodes is open to nodes alone: ${jsonencode(module.security.ingress)}"
  }
  assert {
    condition     = output.secrets == { tls = "lakehead/tls", first-admin = "lakehead/first-admin" } && output.certificate_names == tolist(["10.42.0.10"])
    error_message = jsonencode(output.certificate_names)
  }
  assert {
    condition     = output.interface_endpoints == toset(["secretsmanager"])
    error_message = "a new VPC has a way to the secrets"
  }
  assert {
    condition     = strcontains(module.brokers.user_data["a-0"], "lakehead settings secrets \"$1\" $copies --prefix lakehead --region us-east-1 --admin admin\n")
    error_message = "user data has names of secrets"
  }
}

run "hosts_read_these_two_secrets_and_use_the_key_for_no_other" {
  assert {
    condition = {
      for statement in jsondecode(output.broker_policy_json).Statement : statement.Sid => [statement.Action, statement.Resource, try(statement.Condition, null)] if contains(["Secrets", "KeyThroughSecrets"], statement.Sid)
      } == {
      Secrets = [["secretsmanager:GetSecretValue"], [
        "arn:aws:secretsmanager:us-east-1:123456789012:secret:lakehead/first-admin-GhIjKl", "arn:aws:secretsmanager:us-east-1:123456789012:secret:lakehead/tls-AbCdEf",
      ], null]
      KeyThroughSecrets = [["kms:Decrypt"], "arn:aws:kms:us-east-1:123456789012:key/00000000-0000-0000-0000-000000000000", { StringEquals = {
        "kms:EncryptionContext:SecretARN" = ["arn:aws:secretsmanager:us-east-1:123456789012:secret:lakehead/first-admin-GhIjKl", "arn:aws:secretsmanager:us-east-1:123456789012:secret:lakehead/tls-AbCdEf"]
        "kms:ViaService"                  = "secretsmanager.us-east-1.amazonaws.com"
      } }]
    }
    error_message = output.broker_policy_json
  }
}

run "running_hosts_keep_their_listeners" {
  command = plan
  variables {
    security = { protocol = "PLAINTEXT" }
  }
  expect_failures = [terraform_data.guard, check.hosts_run_the_settings]
}

run "other_ports_and_another_admin_are_settings" {
  variables {
    security = { admin = "root@lake", node_port = 9600 }
    settings = { "connections.max.reauth.ms" = "3600000", "super.users" = "User:root@lake;User:ops" }
  }
  assert {
    condition     = strcontains(module.brokers.settings_toml, "NODES://0.0.0.0:9600\"\n") && strcontains(module.brokers.settings_toml, "\"super.users\" = \"User:root@lake;User:ops\"\n")
    error_message = "settings of the operator go before: ${module.brokers.settings_toml}"
  }
}

run "plaintext_has_to_be_chosen" {
  state_key = "plaintext_has_to_be_chosen"
  variables {
    security = { protocol = "PLAINTEXT" }
  }
  assert {
    condition     = !strcontains(module.brokers.settings_toml, "listener") && length(output.secrets) == 0 && length(output.interface_endpoints) == 0 && module.security.node_ingress == null
    error_message = module.brokers.settings_toml
  }
  assert {
    condition     = !strcontains(output.broker_policy_json, "secretsmanager") && strcontains(module.brokers.user_data["a-0"], "[ -n \"\" ] || return 0")
    error_message = "no secret is read"
  }
}

# A cluster of a release that knew PLAINTEXT alone, and has no protocol in its state.
run "an_older_cluster" {
  state_key = "an_older_cluster"
  variables {
    security = { protocol = "PLAINTEXT" }
  }
  override_resource {
    target = terraform_data.place
    values = { output = { name = "lakehead", prefix = "lakehead", network = "10.42.0.0/16", kafka_port = "9092" } }
  }
  assert {
    condition     = length(local.moved) == 0 && local.protocol == "PLAINTEXT"
    error_message = "it goes on with the choice that its operator made"
  }
}

run "an_older_cluster_is_not_cut_off_from_its_clients" {
  state_key = "an_older_cluster"
  command   = plan
  override_resource {
    target = terraform_data.place
    values = { output = { name = "lakehead", prefix = "lakehead", network = "10.42.0.0/16", kafka_port = "9092" } }
  }
  expect_failures = [terraform_data.guard, check.hosts_run_the_settings]
}

run "certificates_have_the_names_of_slots_and_ways_in" {
  state_key = "certificates_have_the_names_of_slots_and_ways_in"
  variables {
    bootstrap    = "dns"
    private_link = { domain = "lake.example.com", client_cidrs = { office = "10.8.0.0/16" } }
  }
  assert {
    condition     = output.certificate_names == tolist(["10.42.0.10", "brokers.lakehead.internal", "lake.example.com"])
    error_message = jsonencode(output.certificate_names)
  }
  assert {
    condition     = strcontains(module.brokers.settings_toml, "\"CLIENTS:SASL_SSL,NODES:SSL,LINK:SASL_SSL\"\n")
    error_message = "clients of other networks come by SASL_SSL, too: ${module.brokers.settings_toml}"
  }
}

run "slots_of_a_group_have_a_certificate_before_their_hosts_come" {
  state_key = "slots_of_a_group_have_a_certificate_before_their_hosts_come"
  variables {
    zones   = ["us-east-1a", "us-east-1b", "us-east-1c"]
    scaling = { min = 1, max = 2 }
  }
  override_resource {
    target = module.elastic[0].aws_network_interface.slot["b-1"]
    values = { private_ip = "10.42.16.11" }
  }
  assert {
    condition     = toset(output.certificate_names) == toset(["10.42.0.10", "10.42.16.11"])
    error_message = jsonencode(output.certificate_names)
  }
  assert {
    condition     = strcontains(module.brokers.group_user_data, "--prefix lakehead --region us-east-1 --admin admin") && output.interface_endpoints == toset(["ec2", "autoscaling", "secretsmanager"])
    error_message = "hosts of a group read them by themselves"
  }
}

run "an_existing_vpc_has_to_have_a_way_to_the_secrets" {
  state_key = "an_existing_vpc_has_to_have_a_way_to_the_secrets"
  command   = plan
  variables {
    existing_vpc = { vpc_id = "vpc-0123abcd", subnet_ids = { us-east-1a = "subnet-0123abcd" } }
  }
  expect_failures = [data.aws_region.current]
}

run "a_protocol_without_encryption" {
  command = plan
  variables {
    security = { protocol = "SASL_PLAINTEXT" }
  }
  expect_failures = [var.security]
}

run "an_admin_with_a_space" {
  command = plan
  variables {
    security = { admin = "the admin" }
  }
  expect_failures = [var.security]
}

run "a_port_of_root_between_nodes" {
  command = plan
  variables {
    security = { node_port = 92 }
  }
  expect_failures = [var.security]
}

run "ports_of_nodes_among_those_of_clients" {
  command = plan
  variables {
    security = { node_port = 9100 }
  }
  expect_failures = [var.security]
}
