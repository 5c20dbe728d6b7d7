# What modules from elsewhere hold is not known: alarms, redrive policies, the queue itself.
module "queue" {
  source  = "terraform-aws-modules/sqs/aws"
  version = "~> 4.0"
  name    = "orders"
}
module "absent" {
  source = "./not-here"
}
resource "aws_lambda_function" "book" {
  timeout = 900
}
resource "aws_lambda_event_source_mapping" "orders" {
  event_source_arn = module.queue.queue_arn
  function_name    = aws_lambda_function.book.arn
}
resource "aws_sqs_queue" "dead" {
  message_retention_seconds = 1209600
}
resource "aws_sqs_queue" "refunds" {
  visibility_timeout_seconds = module.absent.timeout
  redrive_policy             = jsonencode({ deadLetterTargetArn = aws_sqs_queue.dead.arn, maxReceiveCount = 10 })
}
resource "aws_lambda_event_source_mapping" "refunds" {
  event_source_arn        = aws_sqs_queue.refunds.arn
  function_name           = aws_lambda_function.book.arn
  function_response_types = module.absent.types
}
resource "aws_sns_topic" "people" {}
resource "aws_cloudwatch_metric_alarm" "throttles" {
  namespace     = "AWS/Lambda"
  metric_name   = "Throttles"
  dimensions    = { FunctionName = aws_lambda_function.book.function_name }
  alarm_actions = [aws_sns_topic.people.arn]
}
