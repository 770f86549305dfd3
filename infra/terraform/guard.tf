# Refusals that a plan cannot make: of what the configuration has no more, only a provisioner of destroy
# is told. It needs a shell and nothing else, so that it holds in every pipeline.

locals {
  hosts_with_other_settings = sort([
    for slot, version in module.brokers.settings.reported : slot
    if version != module.brokers.settings.version && contains(concat(keys(local.slots), keys(local.group_slots)), slot)
  ])
  hosts_to_replace = sort([for slot, revision in module.brokers.revisions : slot if revision.now != revision.next])
}

# Said with every plan, since an apply leaves these hosts as they are.
check "hosts_are_as_configured" {
  assert {
    condition     = length(local.hosts_to_replace) == 0
    error_message = "An apply replaces no host. Made of another image, instance type or release than the configuration has now: ${join(", ", local.hosts_to_replace)}. Replace them one after the other: lakehead rolling-update, or terraform apply with -replace='...aws_instance.host[\"${join("", slice(concat(local.hosts_to_replace, [""]), 0, 1))}\"]', and the next one when all serve."
  }
}

check "hosts_run_the_settings" {
  assert {
    condition     = length(local.hosts_with_other_settings) == 0
    error_message = "Hosts that have not reported the settings of the configuration (${module.brokers.settings.version}) yet: ${join(", ", local.hosts_with_other_settings)}. They take them by themselves, one after the other; journalctl --unit lakehead-settings says on a host what keeps it."
  }
}

locals {
  network = var.existing_vpc == null ? var.vpc_cidr : var.existing_vpc.vpc_id

  # Each is part of the names, rules or permissions of all hosts, so that a change of it stops all at once.
  place = {
    name       = var.name
    prefix     = var.prefix
    network    = local.network
    kafka_port = tostring(var.kafka_port)
    protocol   = var.security.protocol
    encryption = local.provider
  }
  moved = [for key, value in local.place : key if !contains(["protocol", "encryption"], key) && value != lookup(terraform_data.place.output, key, "")]
  # Clusters of releases that knew no other one have none in their state.
  protocol = lookup(terraform_data.place.output, "protocol", "PLAINTEXT")
  other_id = sort([for slot, host in local.slots : slot if module.brokers.node_ids[slot] != tostring(host.node_id)])
}

# Keeps the place that the hosts were made for.
resource "terraform_data" "place" {
  input = local.place

  lifecycle {
    ignore_changes = [input]
  }
}

# Zones in their order, which give the slots of a group their node ids.
resource "terraform_data" "group_zones" {
  count = var.scaling == null ? 0 : 1
  input = join(", ", var.zones)

  lifecycle {
    ignore_changes = [input]
  }
}

# `terraform destroy` begins here, as this is made last. S3 and KMS would refuse too, but only in the
# end, when hosts and volumes, with what was not uploaded yet, are gone.
resource "terraform_data" "guard" {
  input = {
    bucket = module.storage.bucket
    force  = tostring(var.force_destroy)
  }
  triggers_replace = [module.storage.bucket]
  depends_on       = [module.storage, module.network, module.security, module.wal, module.brokers, module.elastic, module.bootstrap, module.private_link, module.lake, module.airflow, module.observability, module.cloudwatch, module.healing]

  lifecycle {
    precondition {
      condition     = alltrue([for mode in values(module.brokers.wal_modes) : mode == var.wal_mode])
      error_message = "Hosts run with another wal_mode, and their logs may hold records that are nowhere else. Set wal_mode back; or stop all nodes cleanly (systemctl stop lakehead, on every host), then apply with -replace='...aws_instance.host[\"SLOT\"]' for every host."
    }
    precondition {
      condition     = length(local.moved) == 0
      error_message = "Hosts run with other values of ${join(", ", local.moved)}, and a change would stop all of them at once. Set them back: ${join(", ", [for key in local.moved : "${key} = ${terraform_data.place.output[key]}"])} (network is vpc_cidr or existing_vpc). Or stop all nodes cleanly (systemctl stop lakehead, on every host), then apply with -replace=...terraform_data.place, and -replace='...aws_instance.host[\"SLOT\"]' for every host."
    }
    precondition {
      condition     = local.protocol == var.security.protocol
      error_message = "Hosts run with listeners for ${local.protocol}, and a change would cut their clients off, and nodes from one another. To keep them, set security = { protocol = \"${local.protocol}\" }. To change them, follow docs/terraform.md#from-plaintext-to-sasl_ssl."
    }
    precondition {
      condition     = local.provider != "kms" || local.begins_encrypted ? true : terraform_data.kept_encryption[0].triggers_replace == "none"
      error_message = "Hosts restart one after the other, and those that have no key yet cannot read what the first ones encrypt. Apply encryption = { enabled = false } first, and this when no plan shows hosts_run_the_settings any more."
    }
    precondition {
      condition     = length(local.other_id) == 0
      error_message = "With these zones, hosts have other node ids, which new hosts would share with running ones: ${join(", ", local.other_id)}. Set zones back; or stop all nodes cleanly (systemctl stop lakehead, on every host), then apply with -replace='...aws_instance.host[\"SLOT\"]' for every host."
    }
    precondition {
      condition     = alltrue([for zones in terraform_data.group_zones[*].output : zones == join(", ", var.zones)])
      error_message = "The slots of the group have node ids by zones = ${join("", terraform_data.group_zones[*].output)}, and new hosts would share ids with running ones. Set zones back; or stop all nodes cleanly (systemctl stop lakehead, on every host), then apply with -replace='...terraform_data.group_zones[0]'."
    }
  }

  provisioner "local-exec" {
    when  = destroy
    quiet = true
    environment = {
      BUCKET = self.input.bucket
      FORCE  = self.input.force
    }
    command = <<-EOT
      [ "$FORCE" = true ] && exit 0
      case " $LAKEHEAD_MAY_END " in *" cluster "*) exit 0 ;; esac
      echo "Nothing was destroyed: bucket $BUCKET may hold data. To delete the data too, and the cluster's own key, apply force_destroy = true first." >&2
      exit 1
    EOT
  }
}

# A host that is not wanted any more goes with its log, and several go at once: fewer hosts, another
# zone, scaling. `lakehead rolling-update` drains them, waits for their logs, and says which may end.
resource "terraform_data" "kept_host" {
  for_each = local.slots
  input = {
    slot     = each.key
    force    = tostring(var.force_destroy)
    instance = module.brokers.instance_ids[each.key]
    volume   = local.block_wal ? module.wal[0].volume_ids[each.key] : ""
  }

  provisioner "local-exec" {
    when  = destroy
    quiet = true
    environment = {
      SLOT  = self.input.slot
      FORCE = self.input.force
    }
    command = <<-EOT
      [ "$FORCE" = true ] && exit 0
      case " $LAKEHEAD_MAY_END " in *" $SLOT "* | *" cluster "*) exit 0 ;; esac
      echo "Host $SLOT was kept: an apply would end it, and others with it, undrained and with what its log holds. Use lakehead rolling-update; or drain it and set LAKEHEAD_MAY_END=$SLOT in the environment of terraform apply." >&2
      exit 1
    EOT
  }
}

resource "terraform_data" "kept_group" {
  count      = var.scaling == null ? 0 : 1
  input      = { force = tostring(var.force_destroy) }
  depends_on = [module.elastic]

  provisioner "local-exec" {
    when        = destroy
    quiet       = true
    environment = { FORCE = self.input.force }
    command     = <<-EOT
      [ "$FORCE" = true ] && exit 0
      case " $LAKEHEAD_MAY_END " in *" group "* | *" cluster "*) exit 0 ;; esac
      echo "The group of hosts was kept: an apply would end all of them at once. Keep scaling; or, when the cluster may be away, set LAKEHEAD_MAY_END=group in the environment of terraform apply." >&2
      exit 1
    EOT
  }
}
