locals {
  queues = {
    orders  = { timeout = 20, batch = 10 }
    refunds = { timeout = 60, batch = 1 }
  }
}
resource "aws_sqs_queue" "dead" {
  for_each                  = local.queues
  name                      = "${each.key}-dead"
  message_retention_seconds = 14 * 86400
}
resource "aws_sqs_queue" "all" {
  for_each                   = local.queues
  name                       = each.key
  visibility_timeout_seconds = 6 * each.value.timeout
  redrive_policy             = jsonencode({ deadLetterTargetArn = aws_sqs_queue.dead[each.key].arn, maxReceiveCount = 5 })
}
resource "aws_lambda_function" "all" {
  for_each      = local.queues
  function_name = each.key
  timeout       = each.value["timeout"]
}
resource "aws_lambda_event_source_mapping" "all" {
  for_each                = local.queues
  event_source_arn        = aws_sqs_queue.all[each.key].arn
  function_name           = aws_lambda_function.all[each.key].function_name
  batch_size              = each.value.batch
  function_response_types = each.value.batch > 1 ? ["ReportBatchItemFailures"] : null
}
resource "aws_sns_topic" "people" {}
resource "aws_cloudwatch_metric_alarm" "dead" {
  for_each            = aws_sqs_queue.dead
  namespace           = "AWS/SQS"
  metric_name         = "ApproximateNumberOfMessagesVisible"
  dimensions          = { QueueName = each.value.name }
  statistic           = "Maximum"
  threshold           = 1
  comparison_operator = "GreaterThanOrEqualToThreshold"
  treat_missing_data  = "notBreaching"
  alarm_actions       = [aws_sns_topic.people.arn]
  ok_actions          = [aws_sns_topic.people.arn]
}
