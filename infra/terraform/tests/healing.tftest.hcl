# A fixed host that is lost comes back.

mock_provider "aws" {
  source = "./tests/mocks"
}

variables {
  hosts_per_zone = 2
  observability  = false
}

run "what_fails_is_moved_and_what_hangs_is_rebooted" {
  assert {
    condition = { for key, remedy in module.healing[0].remedies : key => "${remedy.metric} ${remedy.action}" } == {
      a-0-recover = "StatusCheckFailed_System arn:aws:automate:us-east-1:ec2:recover"
      a-0-reboot  = "StatusCheckFailed_Instance arn:aws:automate:us-east-1:ec2:reboot"
      a-1-recover = "StatusCheckFailed_System arn:aws:automate:us-east-1:ec2:recover"
      a-1-reboot  = "StatusCheckFailed_Instance arn:aws:automate:us-east-1:ec2:reboot"
    }
    error_message = jsonencode(module.healing[0].remedies)
  }
  assert {
    condition     = alltrue([for key, remedy in module.healing[0].remedies : remedy.instance == output.hosts[substr(key, 0, 3)].instance])
    error_message = "each its own host"
  }
  assert {
    condition     = module.healing[0].remedies["a-0-reboot"].minutes > module.healing[0].remedies["a-0-recover"].minutes
    error_message = "a host that is moved is not rebooted meanwhile"
  }
  assert {
    condition     = toset(module.healing[0].started) == toset([for host in values(output.hosts) : host.instance])
    error_message = "what EC2 stops is started again"
  }
}

run "roles_start_hosts_of_this_cluster_and_nothing_else" {
  assert {
    condition     = [for one in jsondecode(module.healing[0].start_policy_json).Statement : one.Condition.StringEquals["aws:ResourceTag/lakehead:bucket"] if contains(one.Action, "ec2:StartInstances")] == ["lake-bucket"]
    error_message = module.healing[0].start_policy_json
  }
  assert {
    condition     = alltrue([for one in jsondecode(module.healing[0].start_policy_json).Statement : one.Resource != "*" || alltrue([for action in one.Action : startswith(action, "ec2:Describe")])])
    error_message = "what is about everything only looks"
  }
  assert {
    condition     = toset(flatten([for one in jsondecode(module.healing[0].rule_policy_json).Statement : one.Action])) == toset(["ssm:StartAutomationExecution", "iam:PassRole"])
    error_message = module.healing[0].rule_policy_json
  }
}

run "it_may_be_turned_off" {
  variables {
    self_healing = false
  }
  assert {
    condition     = length(module.healing) == 0
    error_message = "to keep a host stopped"
  }
}

run "a_group_replaces_its_hosts_itself" {
  variables {
    zones          = ["us-east-1a", "us-east-1b", "us-east-1c"]
    hosts_per_zone = 1
    scaling        = { min = 1, max = 2 }
  }
  assert {
    condition     = length(module.healing) == 0
    error_message = "a group's instances are not kept"
  }
}

run "more_hosts_than_a_pattern_holds" {
  module {
    source = "./modules/healing"
  }
  variables {
    name         = "lakehead"
    tags         = {}
    slots        = toset([for number in range(120) : "a-${number}"])
    instance_ids = { for number in range(120) : "a-${number}" => format("i-%017d", number) }
  }
  assert {
    condition     = length(aws_cloudwatch_event_rule.stopped) == 3 && alltrue([for rule in aws_cloudwatch_event_rule.stopped : length(rule.event_pattern) <= 2048])
    error_message = "EventBridge takes 2,048 characters"
  }
  assert {
    condition     = length(output.started) == 120
    error_message = "all of them"
  }
}
