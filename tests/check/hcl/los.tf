# finds: LOS001 error
resource "aws_sqs_queue" "orders" {
  visibility_timeout_seconds = 60
}

# finds: LOS001 error
resource "aws_sqs_queue" "orders" {
  name                       = "orders"
  visibility_timeout_seconds = var.visibility
  redrive_policy             = null
}
variable "visibility" {
  default = 60
}

# finds: LOS002 warning
resource "aws_sqs_queue" "dead" {
}

# finds: LOS002 error
# The redrive policy is a resource of its own.
resource "aws_sqs_queue" "dead" {
  message_retention_seconds = 24 * 3600
}
resource "aws_sqs_queue" "orders" {
  visibility_timeout_seconds = 60
}
resource "aws_sqs_queue_redrive_policy" "orders" {
  queue_url      = aws_sqs_queue.orders.id
  redrive_policy = jsonencode({ deadLetterTargetArn = aws_sqs_queue.dead.arn, maxReceiveCount = 5 })
}

# finds: LOS003 error
resource "aws_sqs_queue" "orders" {
  visibility_timeout_seconds = 60
  redrive_policy             = jsonencode({ deadLetterTargetArn = aws_sqs_queue.dead.arn, maxReceiveCount = 1 })
}

# finds: LOS003 warning
locals {
  redrive = { deadLetterTargetArn = aws_sqs_queue.dead.arn, maxReceiveCount = length(["a", "b", "c"]) }
}
resource "aws_sqs_queue" "orders" {
  visibility_timeout_seconds = 60
  redrive_policy             = jsonencode(local.redrive)
}

# finds: LOS004 error
resource "aws_sqs_queue" "orders" {
  visibility_timeout_seconds = 60
  message_retention_seconds  = 3600
  redrive_policy             = jsonencode({ deadLetterTargetArn = aws_sqs_queue.dead.arn, maxReceiveCount = 100 })
}

# finds: LOS004 error
resource "aws_sqs_queue" "orders" {
  visibility_timeout_seconds = 1800
  message_retention_seconds  = 3600
  redrive_policy = jsonencode({
    "deadLetterTargetArn" : aws_sqs_queue.dead.arn,
    "maxReceiveCount" : "5"
  })
}
resource "aws_lambda_function" "book" {
  timeout = 300
}
resource "aws_lambda_event_source_mapping" "orders" {
  event_source_arn = aws_sqs_queue.orders.arn
  function_name    = aws_lambda_function.book.arn
  batch_size       = 1
}

# finds: LOS005 error
resource "aws_sqs_queue" "dead" {
  name                      = "dead.fifo"
  fifo_queue                = true
  message_retention_seconds = 1209600
}

# finds: LOS005 error
resource "aws_sqs_queue" "orders" {
  name                       = "orders.fifo"
  fifo_queue                 = true
  visibility_timeout_seconds = 60
  redrive_policy             = jsonencode({ deadLetterTargetArn = aws_sqs_queue.dead.arn, maxReceiveCount = 5 })
}

# finds: LOS006 error
resource "aws_sqs_queue" "dead" {
  message_retention_seconds = 1209600
  redrive_allow_policy      = jsonencode({ redrivePermission = "denyAll" })
}

# finds: LOS006 error
# Another queue is allowed.
resource "aws_sqs_queue" "refunds" {
  redrive_policy = jsonencode({ deadLetterTargetArn = aws_sqs_queue.dead.arn, maxReceiveCount = 5 })
}
resource "aws_sqs_queue_redrive_allow_policy" "dead" {
  queue_url            = aws_sqs_queue.dead.id
  redrive_allow_policy = jsonencode({ redrivePermission = "byQueue", sourceQueueArns = [aws_sqs_queue.refunds.arn] })
}

# finds: LOS007 warning
resource "aws_scheduler_schedule" "nightly" {
  schedule_expression = "cron(0 3 * * ? *)"
  target {
    arn      = aws_sqs_queue.orders.arn
    role_arn = "arn:aws:iam::111122223333:role/sends"
    input    = "{\"day\": \"<aws.scheduler.scheduled-time>\"}"
  }
}

# finds: LOS007 warning
resource "aws_cloudwatch_event_rule" "placed" {
  name          = "placed"
  event_pattern = jsonencode({ source = ["shop.orders"] })
}
resource "aws_cloudwatch_event_target" "book" {
  rule     = "placed"
  arn      = "arn:aws:states:us-east-1:123456789012:stateMachine:book"
  role_arn = "arn:aws:iam::111122223333:role/starts"
}

# finds: LOS008 error
resource "aws_cloudwatch_event_rule" "placed" {
  event_pattern = jsonencode({ source = ["shop.orders"] })
}
resource "aws_cloudwatch_event_target" "book" {
  rule     = aws_cloudwatch_event_rule.placed.id
  arn      = "arn:aws:states:us-east-1:123456789012:stateMachine:book"
  role_arn = "arn:aws:iam::111122223333:role/starts"
  dead_letter_config {
    arn = aws_sqs_queue.dead.arn
  }
}

# finds: LOS008 error
# The role may send to the target, and not to the dead-letter queue.
resource "aws_sqs_queue" "missed" {
  message_retention_seconds = 1209600
}
resource "aws_iam_role" "sends" {
  assume_role_policy = jsonencode({
    Statement = [{ Effect = "Allow", Action = "sts:AssumeRole", Principal = { Service = "scheduler.amazonaws.com" } }]
  })
}
resource "aws_iam_role_policy" "send" {
  role = aws_iam_role.sends.id
  policy = jsonencode({
    Statement = [for arn in [aws_sqs_queue.orders.arn] : { Effect = "Allow", Action = "sqs:SendMessage", Resource = arn }]
  })
}
resource "aws_scheduler_schedule" "nightly" {
  schedule_expression = "rate(1 day)"
  target {
    arn      = aws_sqs_queue.orders.arn
    role_arn = aws_iam_role.sends.arn
    input    = "{\"day\": \"<aws.scheduler.scheduled-time>\"}"
    dead_letter_config {
      arn = aws_sqs_queue.missed.arn
    }
  }
}

# finds: LOS008 error
# The queue's policy is for another topic.
resource "aws_sns_topic" "news" {
}
resource "aws_sns_topic" "other" {
}
resource "aws_sqs_queue_policy" "orders" {
  queue_url = aws_sqs_queue.orders.id
  policy    = <<EOT
{
  "Statement": [{
    "Effect": "Allow",
    "Principal": {"Service": "sns.amazonaws.com"},
    "Action": "sqs:SendMessage",
    "Resource": "${aws_sqs_queue.orders.arn}",
    "Condition": {"ArnEquals": {"aws:SourceArn": "${aws_sns_topic.other.arn}"}}
  }]
}
EOT
}
resource "aws_sns_topic_subscription" "orders" {
  topic_arn = aws_sns_topic.news.arn
  protocol  = "sqs"
  endpoint  = aws_sqs_queue.orders.arn
}

# finds: LOS009 error
resource "aws_lambda_function" "refund" {
  function_name = "refund"
  timeout       = 10
}
resource "aws_lambda_event_source_mapping" "refunds" {
  event_source_arn        = aws_sqs_queue.orders.arn
  function_name           = aws_lambda_function.refund.arn
  function_response_types = ["ReportBatchItemFailures"]
  filter_criteria {
    filter {
      pattern = jsonencode({ body = { kind = ["refund"] } })
    }
  }
}

# finds: LOS009 error
# A loop gives each function the half that it takes.
locals {
  kinds = { order = "order", refund = "refund" }
}
resource "aws_lambda_function" "book" {
  for_each      = local.kinds
  function_name = each.key
  timeout       = 10
}
resource "aws_lambda_event_source_mapping" "orders" {
  for_each                = local.kinds
  event_source_arn        = aws_sqs_queue.orders.arn
  function_name           = aws_lambda_function.book[each.key].arn
  function_response_types = ["ReportBatchItemFailures"]
  filter_criteria {
    dynamic "filter" {
      for_each = [each.value]
      content {
        pattern = "{\"body\": {\"kind\": [\"${filter.value}\"]}}"
      }
    }
  }
}

# finds: LOS010 warning
resource "aws_lambda_function" "book" {
  timeout                        = 10
  reserved_concurrent_executions = 2
}

# finds: LOS010 warning
resource "aws_lambda_function" "book" {
  timeout                        = 10
  reserved_concurrent_executions = 5
}
resource "aws_lambda_event_source_mapping" "orders" {
  event_source_arn        = aws_sqs_queue.orders.arn
  function_name           = aws_lambda_function.book.arn
  function_response_types = ["ReportBatchItemFailures"]
  scaling_config {
    maximum_concurrency = 10
  }
}

# finds: LOS011 warning
resource "aws_lambda_event_source_mapping" "orders" {
  event_source_arn        = aws_sqs_queue.orders.arn
  function_name           = aws_lambda_function.book.arn
  function_response_types = ["ReportBatchItemFailures"]
  destination_config {
    on_failure {
      destination_arn = "arn:aws:sqs:us-east-1:123456789012:failed"
    }
  }
}

# finds: LOS011 warning
resource "aws_lambda_event_source_mapping" "orders" {
  event_source_arn = aws_sqs_queue.orders.arn
  function_name    = aws_lambda_function.book.arn
  batch_size       = 1
  destination_config {
    on_failure {
      destination_arn = aws_sqs_queue.dead.arn
    }
  }
}

# finds: LOS012 error
resource "aws_lambda_function" "book" {
  timeout = 10
  durable_config {
    execution_timeout = 86400
    retention_period  = 7
  }
}

# finds: LOS012 error
resource "aws_lambda_function" "book" {
  timeout = 10
  durable_config {
    execution_timeout = 2 * 3600
  }
  capacity_provider_config {
    lambda_managed_instances_capacity_provider_config {
      capacity_provider_arn = "arn:aws:lambda:us-east-1:123456789012:capacity-provider:c"
    }
  }
}

# finds: LOS015 warning
resource "aws_sqs_queue" "small" {
  max_message_size = 262144
  policy = jsonencode({
    Statement = [{ Effect = "Allow", Principal = { Service = "events.amazonaws.com" }, Action = "sqs:SendMessage", Resource = "*" }]
  })
}
resource "aws_cloudwatch_event_rule" "placed" {
  event_pattern = jsonencode({ source = ["shop.orders"] })
}
resource "aws_cloudwatch_event_target" "small" {
  rule = aws_cloudwatch_event_rule.placed.name
  arn  = aws_sqs_queue.small.arn
}

# finds: LOS015 warning
resource "aws_sqs_queue" "small" {
  max_message_size = "65536"
  policy           = "{\"Statement\": [{\"Effect\": \"Allow\", \"Principal\": \"*\", \"Action\": \"SQS:SendMessage\", \"Resource\": \"*\"}]}"
}
resource "aws_sns_topic" "news" {
}
resource "aws_sns_topic_subscription" "small" {
  topic_arn = aws_sns_topic.news.id
  protocol  = "sqs"
  endpoint  = aws_sqs_queue.small.arn
}

# finds: LOS017 warning
resource "aws_sfn_state_machine" "import" {
  role_arn = "arn:aws:iam::111122223333:role/runs"
  definition = jsonencode({
    StartAt = "Rows"
    States = {
      Rows = {
        Type                       = "Map"
        ToleratedFailurePercentage = 5
        ItemProcessor = {
          ProcessorConfig = { Mode = "DISTRIBUTED", ExecutionType = "STANDARD" }
          StartAt         = "Row"
          States          = { Row = { Type = "Task", Resource = aws_lambda_function.book.arn, End = true } }
        }
        End = true
      }
    }
  })
}

# finds: LOS017 warning
# A text of JSON with a part that only a deployment knows.
variable "row" {
  type = string
}
resource "aws_sfn_state_machine" "import" {
  role_arn   = "arn:aws:iam::111122223333:role/runs"
  definition = <<-EOT
    {"StartAt": "Both", "States": {"Both": {"Type": "Parallel", "End": true, "Branches": [{"StartAt": "Rows", "States": {
      "Rows": {"Type": "Map", "End": true, "ToleratedFailureCount": 100,
        "ItemProcessor": {"ProcessorConfig": {"Mode": "DISTRIBUTED", "ExecutionType": "EXPRESS"}, "StartAt": "Row",
          "States": {"Row": {"Type": "Task", "Resource": "${var.row}", "End": true}}}}}}]}}}
  EOT
}

# finds: DUP002 error, SUP001 warning
resource "aws_sqs_queue" "orders" {
  visibility_timeout_seconds = 30 # onefold: ignore[DUP002]
  redrive_policy             = jsonencode({ deadLetterTargetArn = aws_sqs_queue.dead.arn, maxReceiveCount = 5 })
}
resource "aws_lambda_function" "book" {
  timeout = 30
}
resource "aws_lambda_event_source_mapping" "orders" {
  event_source_arn = aws_sqs_queue.orders.arn
  function_name    = aws_lambda_function.book.arn
  batch_size       = 1
}

# finds: LOS003 warning, SUP001 warning
resource "aws_sqs_queue" "orders" {
  visibility_timeout_seconds = 60
  redrive_policy = jsonencode({
    deadLetterTargetArn = aws_sqs_queue.dead.arn
    maxReceiveCount     = 2 # onefold: ignore[LOS003] a second run is worse than none, until=2026-11-01
  })
}

# finds: SUP002 info
resource "aws_sqs_queue" "orders" {
  visibility_timeout_seconds = 180 # onefold: ignore[DUP002] no run takes longer than 1 s, until=2999-01-01
  redrive_policy             = jsonencode({ deadLetterTargetArn = aws_sqs_queue.dead.arn, maxReceiveCount = 5 })
}

# finds: SUP002 info
# One of two suppresses something.
resource "aws_sqs_queue" "orders" {
  visibility_timeout_seconds = 60
  redrive_policy = jsonencode({
    deadLetterTargetArn = aws_sqs_queue.dead.arn
    # onefold: ignore[LOS003, LOS004] a second run is worse than none
    maxReceiveCount = 2
  })
}
