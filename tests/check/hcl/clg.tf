resource "aws_sqs_queue" "dead_fifo" {
  name                      = "dead.fifo"
  fifo_queue                = true
  message_retention_seconds = 1209600
}

resource "aws_sqs_queue" "ordered" {
  name                        = "ordered.fifo"
  fifo_queue                  = true
  content_based_deduplication = true
  visibility_timeout_seconds  = 60
  message_retention_seconds   = 1209600
  redrive_policy = jsonencode({
    deadLetterTargetArn = aws_sqs_queue.dead_fifo.arn
    maxReceiveCount     = 5
  })
}

# finds: CLG001 error
resource "aws_lambda_event_source_mapping" "ordered" {
  event_source_arn        = aws_sqs_queue.ordered.arn
  function_name           = aws_lambda_function.book.arn
  batch_size              = 50
  function_response_types = ["ReportBatchItemFailures"]
}

# finds: CLG001 error
resource "aws_sqs_queue" "ordered" {
  name                       = "ordered.fifo"
  fifo_queue                 = true
  visibility_timeout_seconds = 120
  redrive_policy             = jsonencode({ deadLetterTargetArn = aws_sqs_queue.dead_fifo.arn, maxReceiveCount = 5 })
}
resource "aws_lambda_event_source_mapping" "ordered" {
  event_source_arn                   = aws_sqs_queue.ordered.arn
  function_name                      = aws_lambda_function.book.arn
  maximum_batching_window_in_seconds = 5
  function_response_types            = ["ReportBatchItemFailures"]
}

# finds: CLG001 info
# The rule's messages are all in one group.
resource "aws_lambda_event_source_mapping" "ordered" {
  event_source_arn        = aws_sqs_queue.ordered.arn
  function_name           = aws_lambda_function.book.arn
  function_response_types = ["ReportBatchItemFailures"]
}
resource "aws_cloudwatch_event_rule" "placed" {
  event_pattern = jsonencode({ source = ["shop.orders"] })
}
resource "aws_cloudwatch_event_target" "ordered" {
  rule = aws_cloudwatch_event_rule.placed.name
  arn  = aws_sqs_queue.ordered.arn
  sqs_target {
    message_group_id = "all"
  }
}
resource "aws_sqs_queue_policy" "ordered" {
  queue_url = aws_sqs_queue.ordered.url
  policy    = data.aws_iam_policy_document.rules.json
}
data "aws_iam_policy_document" "rules" {
  statement {
    actions   = ["sqs:SendMessage"]
    resources = [aws_sqs_queue.ordered.arn]
    principals {
      type        = "Service"
      identifiers = ["events.amazonaws.com"]
    }
  }
}

# finds: CLG002 info
resource "aws_sqs_queue" "ordered" {
  name                       = "ordered.fifo"
  fifo_queue                 = true
  visibility_timeout_seconds = 15 * 60
  message_retention_seconds  = 14 * 24 * 60 * 60
  redrive_policy             = jsonencode({ deadLetterTargetArn = aws_sqs_queue.dead_fifo.arn, maxReceiveCount = 5 })
}
resource "aws_lambda_event_source_mapping" "ordered" {
  event_source_arn        = aws_sqs_queue.ordered.arn
  function_name           = aws_lambda_function.serial.arn
  function_response_types = ["ReportBatchItemFailures"]
}
resource "aws_lambda_function" "serial" {
  function_name = "serial"
  role          = aws_iam_role.runs.arn
  timeout       = 10
}
resource "aws_iam_role" "runs" {
  assume_role_policy = jsonencode({})
}

# finds: CLG002 warning
resource "aws_sqs_queue" "ordered" {
  name                       = "ordered.fifo"
  fifo_queue                 = true
  visibility_timeout_seconds = 43200
  message_retention_seconds  = 1209600
  redrive_policy             = jsonencode({ deadLetterTargetArn = aws_sqs_queue.dead_fifo.arn, maxReceiveCount = 10 })
}
resource "aws_lambda_event_source_mapping" "ordered" {
  event_source_arn        = aws_sqs_queue.ordered.arn
  function_name           = aws_lambda_function.serial.arn
  function_response_types = ["ReportBatchItemFailures"]
}
resource "aws_lambda_function" "serial" {
  function_name = "serial"
  role          = aws_iam_role.runs.arn
  timeout       = 10
}
resource "aws_iam_role" "runs" {
  assume_role_policy = jsonencode({})
}

# finds: CLG003 error
resource "aws_sqs_queue" "orders" {
  visibility_timeout_seconds = 50000
  redrive_policy             = jsonencode({ deadLetterTargetArn = aws_sqs_queue.dead.arn, maxReceiveCount = 5 })
}

# finds: CLG003 warning, LOS004 error
# Six timeouts do not fit.
resource "aws_sqs_queue" "orders" {
  visibility_timeout_seconds = 43200
  message_retention_seconds  = 86400
  redrive_policy             = jsonencode({ deadLetterTargetArn = aws_sqs_queue.dead.arn, maxReceiveCount = 5 })
}
resource "aws_lambda_function" "book" {
  timeout = 7300
}
resource "aws_lambda_event_source_mapping" "orders" {
  event_source_arn = aws_sqs_queue.orders.arn
  function_name    = aws_lambda_function.book.arn
  batch_size       = 1
}

# finds: CLG004 warning
resource "aws_sqs_queue" "jobs" {
  visibility_timeout_seconds = 7200
}
resource "aws_iam_role" "worker" {
  assume_role_policy = data.aws_iam_policy_document.tasks.json
}
data "aws_iam_policy_document" "tasks" {
  statement {
    actions = ["sts:AssumeRole"]
    principals {
      type        = "Service"
      identifiers = ["ecs-tasks.amazonaws.com"]
    }
  }
}
resource "aws_iam_role_policy" "receive" {
  role   = aws_iam_role.worker.id
  policy = data.aws_iam_policy_document.receive.json
}
data "aws_iam_policy_document" "receive" {
  statement {
    actions   = ["sqs:ReceiveMessage", "sqs:DeleteMessage"]
    resources = [aws_sqs_queue.jobs.arn]
  }
}

# finds: CLG004 warning
# The policy is a text with the queue's name in an ARN.
data "aws_region" "here" {}
resource "aws_sqs_queue" "jobs" {
  name                       = "jobs"
  visibility_timeout_seconds = 43200
}
resource "aws_iam_role" "worker" {
  assume_role_policy = <<EOT
{"Statement": {"Effect": "Allow", "Action": "sts:AssumeRole", "Principal": {"Service": ["ec2.amazonaws.com"]}}}
EOT
}
resource "aws_iam_role_policy" "receive" {
  role = aws_iam_role.worker.name
  policy = jsonencode({
    Statement = { Effect = "Allow", Action = ["sqs:Receive*", "sqs:DeleteMessage"], Resource = "*" }
  })
}

# finds: CLG005 warning
resource "aws_sqs_queue" "orders" {
  visibility_timeout_seconds = 61
  redrive_policy             = jsonencode({ deadLetterTargetArn = aws_sqs_queue.dead.arn, maxReceiveCount = 5 })
}
resource "aws_lambda_event_source_mapping" "orders" {
  event_source_arn                   = aws_sqs_queue.orders.arn
  function_name                      = aws_lambda_function.book.arn
  batch_size                         = 10000
  maximum_batching_window_in_seconds = 1
  function_response_types            = ["ReportBatchItemFailures"]
  scaling_config {
    maximum_concurrency = 100
  }
}

# finds: CLG005 warning
resource "aws_sqs_queue" "orders" {
  visibility_timeout_seconds = 61
  redrive_policy             = jsonencode({ deadLetterTargetArn = aws_sqs_queue.dead.arn, maxReceiveCount = 5 })
}
resource "aws_lambda_event_source_mapping" "orders" {
  event_source_arn                   = aws_sqs_queue.orders.arn
  function_name                      = aws_lambda_function.book.arn
  batch_size                         = 5000
  maximum_batching_window_in_seconds = 1
  function_response_types            = ["ReportBatchItemFailures"]
  dynamic "scaling_config" {
    for_each = true ? [100] : []
    content {
      maximum_concurrency = scaling_config.value
    }
  }
}

# finds: CLG007 error
resource "aws_lambda_event_source_mapping" "orders" {
  event_source_arn        = aws_sqs_queue.orders.arn
  function_name           = aws_lambda_function.book.arn
  function_response_types = ["ReportBatchItemFailures"]
  scaling_config {
    maximum_concurrency = 10
  }
  provisioned_poller_config {
    maximum_pollers = 10
  }
}

# finds: CLG007 error
resource "aws_lambda_event_source_mapping" "orders" {
  event_source_arn = aws_sqs_queue.orders.arn
  function_name    = aws_lambda_function.book.arn
  batch_size       = 1
  scaling_config {
    maximum_concurrency = "5"
  }
  provisioned_poller_config {
    minimum_pollers = 2
  }
}

# finds: CLG008 warning
resource "aws_lambda_function" "book" {
  function_name = "book"
  role          = aws_iam_role.runs.arn
  timeout       = 10
  environment {
    variables = { STAGE = "prod", AGAIN = aws_sqs_queue.orders.url }
  }
}
resource "aws_iam_role" "runs" {
  assume_role_policy = jsonencode({})
  inline_policy {
    name = "p"
    policy = jsonencode({ Statement = [
      { Effect = "Allow", Action = "sqs:SendMessage", Resource = [aws_sqs_queue.orders.arn] },
    ] })
  }
}

# finds: CLG008 warning
# The policy is attached.
locals {
  variables = merge({ STAGE = "prod" }, { QUEUE = aws_sqs_queue.orders.id })
}
resource "aws_lambda_function" "book" {
  function_name = "book"
  role          = aws_iam_role.runs.arn
  timeout       = 10
  environment {
    variables = local.variables
  }
}
resource "aws_iam_role" "runs" {
  name               = "runs"
  assume_role_policy = jsonencode({})
}
resource "aws_iam_policy" "sends" {
  policy = jsonencode({ Statement = [{ Effect = "Allow", Action = "sqs:*", Resource = aws_sqs_queue.orders.arn }] })
}
resource "aws_iam_role_policy_attachment" "sends" {
  role       = aws_iam_role.runs.name
  policy_arn = aws_iam_policy.sends.arn
}

# finds: CLG012 error
resource "aws_lambda_event_source_mapping" "orders" {
  event_source_arn        = aws_sqs_queue.orders.arn
  function_name           = aws_lambda_function.book.arn
  batch_size              = 50
  function_response_types = ["ReportBatchItemFailures"]
}

# finds: CLG012 error
resource "aws_lambda_event_source_mapping" "orders" {
  event_source_arn                   = aws_sqs_queue.orders.arn
  function_name                      = aws_lambda_function.book.arn
  batch_size                         = "11"
  maximum_batching_window_in_seconds = 0
  function_response_types            = ["ReportBatchItemFailures"]
}
