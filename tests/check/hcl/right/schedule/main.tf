variable "alarms" {
  type = bool
}
variable "stage" {
  default = "prod"
}
resource "aws_sqs_queue" "jobs" {
  name = "jobs-${var.stage}"
}
resource "aws_sqs_queue" "missed" {
  name                      = "missed-${var.stage}"
  message_retention_seconds = 1209600
}
resource "aws_iam_role" "sends" {
  name = "sends"
  assume_role_policy = jsonencode({
    Statement = [{ Effect = "Allow", Action = "sts:AssumeRole", Principal = { Service = "scheduler.amazonaws.com" } }]
  })
}
data "aws_iam_policy_document" "send" {
  statement {
    actions   = ["sqs:SendMessage"]
    resources = [for queue in [aws_sqs_queue.jobs, aws_sqs_queue.missed] : queue.arn]
  }
}
resource "aws_iam_role_policy" "send" {
  role   = aws_iam_role.sends.name
  policy = data.aws_iam_policy_document.send.json
}
resource "aws_scheduler_schedule_group" "jobs" {
  name = "jobs"
}
resource "aws_scheduler_schedule" "nightly" {
  group_name          = aws_scheduler_schedule_group.jobs.name
  schedule_expression = "cron(0 3 * * ? *)"
  flexible_time_window {
    mode = "OFF"
  }
  target {
    arn      = aws_sqs_queue.jobs.arn
    role_arn = aws_iam_role.sends.arn
    input    = jsonencode({ day = "<aws.scheduler.scheduled-time>" })
    dead_letter_config {
      arn = aws_sqs_queue.missed.arn
    }
  }
}
resource "aws_sns_topic" "people" {}
resource "aws_cloudwatch_metric_alarm" "missed" {
  count               = var.alarms ? 1 : 0
  namespace           = "AWS/SQS"
  metric_name         = "ApproximateNumberOfMessagesVisible"
  dimensions          = { QueueName = aws_sqs_queue.missed.name }
  statistic           = "Maximum"
  threshold           = 1
  comparison_operator = "GreaterThanOrEqualToThreshold"
  treat_missing_data  = "notBreaching"
  alarm_actions       = [aws_sns_topic.people.arn]
  ok_actions          = [aws_sns_topic.people.arn]
}
