# Which queues there are, with which numbers, is a variable without a default.
variable "queues" {
  type = map(object({ timeout = number, receives = optional(number, 1) }))
}
resource "aws_sqs_queue" "dead" {
  for_each = var.queues
}
resource "aws_sqs_queue" "all" {
  for_each                   = var.queues
  visibility_timeout_seconds = each.value.timeout
  redrive_policy             = jsonencode({ deadLetterTargetArn = aws_sqs_queue.dead[each.key].arn, maxReceiveCount = each.value.receives })
}
resource "aws_lambda_function" "all" {
  for_each = var.queues
  timeout  = each.value.timeout
}
resource "aws_lambda_event_source_mapping" "all" {
  for_each         = aws_sqs_queue.all
  event_source_arn = each.value.arn
  function_name    = aws_lambda_function.all[each.key].arn
}
# One queue beside them, whose alarm may be among these.
resource "aws_sqs_queue" "missed" {
  name                      = "missed"
  message_retention_seconds = 1209600
}
resource "aws_sqs_queue" "jobs" {
  redrive_policy = jsonencode({ deadLetterTargetArn = aws_sqs_queue.missed.arn, maxReceiveCount = 10 })
}
resource "aws_cloudwatch_metric_alarm" "depth" {
  for_each            = var.queues
  namespace           = "AWS/SQS"
  metric_name         = "ApproximateNumberOfMessagesVisible"
  dimensions          = { QueueName = each.key }
  statistic           = "Maximum"
  threshold           = 1
  comparison_operator = "GreaterThanOrEqualToThreshold"
  treat_missing_data  = "notBreaching"
  alarm_actions       = [var.topic]
  ok_actions          = [var.topic]
}
variable "topic" {}
