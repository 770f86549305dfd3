# Encryption at rest by the nodes (var.encryption, docs/encryption.md): S3 and volumes get ciphertext.

locals {
  own_node_key = var.encryption == null ? false : var.encryption.own_key == null ? var.encryption.kms_key_arn == null : var.encryption.own_key
  provider     = var.encryption == null ? "" : var.encryption.enabled ? "kms" : "none"

  # Named by way of kept_encryption, so that what has the keys changes after it is gone.
  node_keys = length(terraform_data.kept_encryption) == 0 ? null : {
    current = var.encryption.kms_key_arn == null ? module.storage.node_key_arn : var.encryption.kms_key_arn
    all     = concat(compact([var.encryption.kms_key_arn]), local.own_node_key ? [module.storage.node_key_arn] : [], sort(var.encryption.earlier_kms_key_arns))
    cluster = "${var.bucket}/${var.prefix}"
  }
  encryption_settings = local.node_keys == null ? {} : merge({
    "encryption.key.provider" = local.provider
    "encryption.kms.key"      = local.node_keys.current
  }, var.encryption.required ? { "encryption.required" = "true" } : {})

  # Programs that have no settings of a node take them from the end of the address.
  store_address = join("#", concat(
    ["s3://${module.storage.bucket}/${var.prefix}"],
    local.node_keys == null ? [] : [join("&", [for name, value in local.encryption_settings : "${name}=${value}"])],
  ))
  # The first apply is of a cluster without data. Clusters of releases before this one have no record of it.
  begins_encrypted = lookup(terraform_data.place.output, "encryption", "") != ""
}

# Goes before the key and the way to KMS, and before settings and rights are taken from hosts: a refusal
# leaves all of them. Its triggers_replace is a record: whether nodes encrypted from the first apply on
# that gave them keys, or only read.
resource "terraform_data" "kept_encryption" {
  count            = var.encryption == null ? 0 : 1
  input            = { force = tostring(var.force_destroy) }
  triggers_replace = local.provider
  depends_on       = [module.storage, module.network]

  lifecycle {
    ignore_changes = [triggers_replace]
  }

  provisioner "local-exec" {
    when        = destroy
    quiet       = true
    environment = { FORCE = self.input.force }
    command     = <<-EOT
      [ "$FORCE" = true ] && exit 0
      case " $LAKEHEAD_MAY_END " in *" encryption "* | *" cluster "*) exit 0 ;; esac
      echo "The keys of encryption were kept: nodes cannot read what they encrypted without them. To encrypt nothing more, set encryption = { enabled = false }. When lakehead inspect keys shows plain objects alone, set LAKEHEAD_MAY_END=encryption in the environment of terraform apply." >&2
      exit 1
    EOT
  }
}

output "node_keys" {
  description = "KMS keys by which nodes encrypt: that of what is written now, and the cluster's own (null without one); null without encryption."
  value       = local.node_keys == null ? null : { current = local.node_keys.current, own = module.storage.node_key_arn }
}
