variable "slots" {
  type = map(object({ number = number, node_id = number, port = number, wal = string }))
}

variable "folder" {
  type = string
}

variable "python" {
  type = string
}

variable "script" {
  type = string
}

variable "nodes" {
  type = number
}

variable "upload_age_ms" {
  type = number
}

variable "release" {
  type = string
}

locals {
  user_data = {
    for slot, host in var.slots : slot => jsonencode({
      "nodes"                        = var.nodes
      "node.id"                      = host.node_id
      "host.id"                      = "roll-${slot}"
      "port"                         = host.port
      "data"                         = "${var.folder}/${slot}"
      "store"                        = "file:${var.folder}/store"
      "wal"                          = host.wal
      "cache.size"                   = "16m"
      "upload.age.ms"                = var.upload_age_ms
      "maintain"                     = false
      "offsets.topic.num.partitions" = 3
      # A setting that differs from release to release, so that one can see which one runs.
      "message.max.bytes" = 1000000 + tonumber(var.release)
    })
  }
}

resource "terraform_data" "address" {
  for_each = var.slots
  input    = each.key
}

resource "terraform_data" "host" {
  for_each         = var.slots
  triggers_replace = local.user_data[each.key]
  input = {
    address = terraform_data.address[each.key].id
    run     = "'${var.python}' '${var.script}'"
    folder  = "${var.folder}/${each.key}"
  }

  provisioner "local-exec" {
    command = "${self.input.run} start '${self.input.folder}'"
    environment = {
      USER_DATA = self.triggers_replace
    }
  }

  provisioner "local-exec" {
    when    = destroy
    command = "${self.input.run} stop '${self.input.folder}'"
  }
}

output "ids" {
  value = { for slot, host in terraform_data.host : slot => host.id }
}
