# Hosts of one machine: processes that local-exec starts and stops, in place of instances, with all
# that infra/terraform has around them: addresses that stay, volumes, attachments of volumes to
# other hosts, a policy, a dashboard. terraform_data is built in, so no provider is needed.
variable "folder" {
  type = string
}

variable "python" {
  type = string
}

variable "script" {
  type = string
}

variable "ports" {
  type = list(number)
}

variable "hosts" {
  type    = number
  default = 3
}

variable "release" {
  type    = string
  default = "1"
}

variable "wal" {
  type    = string
  default = "block:FOLDER/SLOT/wal?size=64MiB&slices=2&grow=yes"
}

variable "upload_age_ms" {
  type    = number
  default = 250
}

variable "nodes" {
  type    = number
  default = 2
}

locals {
  slots = { for number in range(var.hosts) : "a-${number}" => { number = number, node_id = 100 * number, port = var.ports[number] } }
}

module "brokers" {
  source = "./brokers"

  slots         = { for slot, host in local.slots : slot => merge(host, { wal = replace(replace(var.wal, "FOLDER", var.folder), "SLOT", slot) }) }
  folder        = var.folder
  python        = var.python
  script        = var.script
  nodes         = var.nodes
  release       = var.release
  upload_age_ms = var.upload_age_ms
}

resource "terraform_data" "volume" {
  for_each = local.slots
  input    = { slot = each.key, folder = "${var.folder}/${each.key}" }

  provisioner "local-exec" {
    when    = destroy
    command = "rm -f '${self.input.folder}/wal'"
  }
}

# The volume of each host is attached to the next one too.
resource "terraform_data" "attachment" {
  for_each         = { for slot, host in local.slots : "${slot}-on-a-${(host.number + 1) % var.hosts}" => { volume = slot, host = "a-${(host.number + 1) % var.hosts}" } }
  input            = { volume = terraform_data.volume[each.value.volume].id, host = module.brokers.ids[each.value.host] }
  triggers_replace = module.brokers.ids[each.value.host]
}

resource "terraform_data" "dashboard" {
  input = module.brokers.ids
}

resource "terraform_data" "policy" {
  input = "what release ${var.release} may do"
}

output "cluster" {
  value = {
    store = "file:${var.folder}/store"
    hosts = { for slot, host in local.slots : slot => { host_id = "roll-${slot}", node_id = host.node_id, nodes = var.nodes, instance = module.brokers.ids[slot] } }
  }
}
