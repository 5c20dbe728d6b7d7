module "orders" {
  source  = "./queue"
  name    = "orders"
  timeout = aws_lambda_function.book.timeout
}
resource "aws_lambda_function" "book" {
  function_name = "book"
  timeout       = 30
}
resource "aws_lambda_event_source_mapping" "orders" {
  event_source_arn        = module.orders.arns["queue"]
  function_name           = aws_lambda_function.book.arn
  function_response_types = ["ReportBatchItemFailures"]
}
resource "aws_sns_topic" "people" {}
resource "aws_cloudwatch_metric_alarm" "dead" {
  namespace           = "AWS/SQS"
  metric_name         = "ApproximateNumberOfMessagesVisible"
  dimensions          = { QueueName = module.orders.dead_name }
  statistic           = "Maximum"
  threshold           = 1
  comparison_operator = "GreaterThanOrEqualToThreshold"
  treat_missing_data  = "notBreaching"
  alarm_actions       = [aws_sns_topic.people.arn]
  ok_actions          = [aws_sns_topic.people.arn]
}
