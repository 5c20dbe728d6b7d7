resource "aws_sqs_queue" "dead" {
  name                      = "orders-dead"
  message_retention_seconds = 1209600
}

resource "aws_sqs_queue" "orders" {
  name                       = "orders"
  visibility_timeout_seconds = 60
  redrive_policy = jsonencode({
    deadLetterTargetArn = aws_sqs_queue.dead.arn
    maxReceiveCount     = 5
  })
}

resource "aws_sns_topic" "people" {
  name = "people"
}

# finds: BLD001 warning
resource "aws_cloudwatch_metric_alarm" "in_flight" {
  namespace           = "AWS/SQS"
  metric_name         = "ApproximateNumberOfMessagesNotVisible"
  dimensions          = { QueueName = aws_sqs_queue.orders.name }
  statistic           = "Maximum"
  threshold           = 1
  comparison_operator = "GreaterThanOrEqualToThreshold"
  treat_missing_data  = "notBreaching"
  alarm_actions       = [aws_sns_topic.people.arn]
  ok_actions          = [aws_sns_topic.people.arn]
}

# finds: BLD001 warning
# The dead-letter queue of orders has an alarm, that of the schedule has none.
resource "aws_sqs_queue" "missed" {
  message_retention_seconds = 1209600
}
resource "aws_scheduler_schedule" "nightly" {
  schedule_expression = "cron(0 3 * * ? *)"
  target {
    arn      = aws_sqs_queue.orders.arn
    role_arn = "arn:aws:iam::111122223333:role/sends"
    input    = "{\"day\": \"<aws.scheduler.scheduled-time>\"}"
    dead_letter_config {
      arn = aws_sqs_queue.missed.arn
    }
  }
}
resource "aws_cloudwatch_metric_alarm" "dead" {
  namespace           = "AWS/SQS"
  metric_name         = "ApproximateNumberOfMessagesVisible"
  dimensions          = { QueueName = "orders-dead" }
  statistic           = "Maximum"
  threshold           = 1
  comparison_operator = "GreaterThanOrEqualToThreshold"
  treat_missing_data  = "notBreaching"
  alarm_actions       = [aws_sns_topic.people.arn]
  ok_actions          = [aws_sns_topic.people.arn]
}

# finds: BLD001 warning, BLD002 error
resource "aws_cloudwatch_metric_alarm" "sent" {
  namespace           = "AWS/SQS"
  metric_name         = "NumberOfMessagesSent"
  dimensions          = { QueueName = aws_sqs_queue.dead.name }
  statistic           = "Maximum"
  threshold           = 1
  comparison_operator = "GreaterThanOrEqualToThreshold"
  treat_missing_data  = "notBreaching"
  alarm_actions       = [aws_sns_topic.people.arn]
  ok_actions          = [aws_sns_topic.people.arn]
}

# finds: BLD001 warning, BLD002 error
resource "aws_cloudwatch_metric_alarm" "errors" {
  for_each            = { DeadLetterErrors = 1 }
  namespace           = "AWS/Lambda"
  metric_name         = each.key
  dimensions          = { FunctionName = aws_lambda_function.book.function_name }
  statistic           = "Sum"
  threshold           = each.value
  comparison_operator = "GreaterThanOrEqualToThreshold"
  treat_missing_data  = "notBreaching"
  alarm_actions       = [aws_sns_topic.people.arn]
  ok_actions          = [aws_sns_topic.people.arn]
}

# finds: BLD001 warning, BLD002 warning
resource "aws_cloudwatch_metric_alarm" "errors" {
  namespace           = "AWS/Lambda"
  metric_name         = "Errors"
  dimensions          = { FunctionName = aws_lambda_function.book.function_name }
  statistic           = "Sum"
  threshold           = 1
  comparison_operator = "GreaterThanOrEqualToThreshold"
  treat_missing_data  = "notBreaching"
  alarm_actions       = [aws_sns_topic.people.arn]
  ok_actions          = [aws_sns_topic.people.arn]
}

# finds: BLD003 warning
resource "aws_cloudwatch_metric_alarm" "dead" {
  namespace           = "AWS/SQS"
  metric_name         = "ApproximateNumberOfMessagesNotVisible"
  dimensions          = { QueueName = aws_sqs_queue.dead.name }
  statistic           = "Maximum"
  threshold           = 1
  comparison_operator = "GreaterThanOrEqualToThreshold"
  treat_missing_data  = "notBreaching"
  alarm_actions       = [aws_sns_topic.people.arn]
  ok_actions          = [aws_sns_topic.people.arn]
}

# finds: BLD003 info
resource "aws_cloudwatch_metric_alarm" "dead" {
  namespace           = "AWS/SQS"
  metric_name         = "ApproximateNumberOfMessagesVisible"
  dimensions          = { QueueName = aws_sqs_queue.dead.name }
  statistic           = "Maximum"
  threshold           = 1
  comparison_operator = "GreaterThanOrEqualToThreshold"
  alarm_actions       = [aws_sns_topic.people.arn]
  ok_actions          = [aws_sns_topic.people.arn]
}

# finds: BLD003 warning
resource "aws_cloudwatch_metric_alarm" "dead" {
  namespace           = "AWS/SQS"
  metric_name         = "ApproximateNumberOfMessagesVisible"
  dimensions          = { QueueName = aws_sqs_queue.dead.name }
  statistic           = "Sum"
  threshold           = 100
  comparison_operator = "GreaterThanOrEqualToThreshold"
  treat_missing_data  = "notBreaching"
  alarm_actions       = [aws_sns_topic.people.arn]
  ok_actions          = [aws_sns_topic.people.arn]
}

# finds: BLD004 warning
resource "aws_cloudwatch_metric_alarm" "dead" {
  namespace           = "AWS/SQS"
  metric_name         = "ApproximateNumberOfMessagesVisible"
  dimensions          = { QueueName = aws_sqs_queue.dead.name }
  statistic           = "Maximum"
  threshold           = 1
  comparison_operator = "GreaterThanOrEqualToThreshold"
  treat_missing_data  = "notBreaching"
}

# finds: BLD004 info
resource "aws_cloudwatch_metric_alarm" "dead" {
  namespace           = "AWS/SQS"
  metric_name         = "ApproximateNumberOfMessagesVisible"
  dimensions          = { QueueName = aws_sqs_queue.dead.name }
  statistic           = "Maximum"
  threshold           = 1
  comparison_operator = "GreaterThanOrEqualToThreshold"
  treat_missing_data  = "notBreaching"
  alarm_actions       = [aws_sns_topic.people.arn]
}

# finds: BLD005 info
resource "aws_scheduler_schedule" "reports" {
  count               = 2
  name                = "report-${count.index}"
  schedule_expression = "rate(1 hour)"
  target {
    arn      = aws_lambda_function.book.arn
    role_arn = "arn:aws:iam::111122223333:role/invokes"
  }
}

# finds: BLD005 info
resource "aws_scheduler_schedule" "hourly" {
  group_name          = "default"
  schedule_expression = "rate(1 hour)"
  target {
    arn      = aws_lambda_function.book.arn
    role_arn = "arn:aws:iam::111122223333:role/invokes"
  }
}
resource "aws_scheduler_schedule" "daily" {
  schedule_expression = "rate(1 hour)"
  target {
    arn      = aws_lambda_function.book.arn
    role_arn = "arn:aws:iam::111122223333:role/invokes"
  }
}

# finds: BLD006 info
resource "aws_lambda_function" "book" {
  function_name = "book"
  timeout       = 10
  tenancy_config {
    tenant_isolation_mode = "PER_TENANT"
  }
}

# finds: BLD006 info
resource "aws_lambda_function" "book" {
  for_each      = { book = 10 }
  function_name = each.key
  timeout       = each.value
  tenancy_config {
    tenant_isolation_mode = "PER_TENANT"
  }
}
resource "aws_lambda_event_source_mapping" "orders" {
  event_source_arn = aws_sqs_queue.orders.arn
  function_name    = aws_lambda_function.book["book"].arn
  batch_size       = 1
}
