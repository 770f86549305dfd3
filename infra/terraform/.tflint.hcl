# The rules that come with tflint; its rules for AWS are a plugin of their own, which is not used.
plugin "terraform" {
  enabled = true
  preset  = "all"
}

# Variables and outputs lie beside what they are about (variables_wal.tf, cost.tf).
rule "terraform_standard_module_structure" {
  enabled = false
}
