# `terraform destroy` begins here, as this is made last. S3 would refuse too, but only in the end, when
# hosts and volumes, with what was not uploaded yet, are gone.
resource "terraform_data" "guard" {
  input = {
    bucket = module.storage.bucket
    region = data.aws_region.current.name
    force  = tostring(var.force_destroy)
  }
  triggers_replace = [module.storage.bucket]
  depends_on       = [module.storage, module.network, module.security, module.wal, module.brokers, module.elastic, module.bootstrap, module.lake, module.airflow, module.observability]

  provisioner "local-exec" {
    when  = destroy
    quiet = true
    environment = {
      BUCKET     = self.input.bucket
      FORCE      = self.input.force
      AWS_REGION = self.input.region
      AWS_PAGER  = ""
    }
    command = <<-EOT
      [ "$FORCE" = true ] && exit 0
      if ! count=$(aws s3api list-objects-v2 --bucket "$BUCKET" --max-keys 1 --query KeyCount --output text); then
        echo "Nothing was destroyed: the AWS CLI cannot say whether bucket $BUCKET is empty. Let it list the bucket, or apply force_destroy = true first." >&2
        exit 1
      fi
      [ "$count" = 0 ] && exit 0
      echo "Nothing was destroyed: bucket $BUCKET holds data. To delete the data too, apply force_destroy = true first." >&2
      exit 1
    EOT
  }
}
