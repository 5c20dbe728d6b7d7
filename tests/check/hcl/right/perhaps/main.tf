# A target, a redrive policy and a dead-letter queue of a function that may or may not be there.
variable "extra" {
  type = bool
}
resource "aws_cloudwatch_event_rule" "placed" {
  name          = "placed"
  event_pattern = jsonencode({ source = ["shop.orders"] })
}
resource "aws_cloudwatch_event_target" "book" {
  count = var.extra ? 1 : 0
  rule  = aws_cloudwatch_event_rule.placed.name
  arn   = "arn:aws:states:us-east-1:123456789012:stateMachine:book"
}
resource "aws_sqs_queue" "dead" {
  message_retention_seconds = 1209600
}
resource "aws_sqs_queue" "orders" {
  visibility_timeout_seconds = 60
}
resource "aws_sqs_queue_redrive_policy" "orders" {
  count          = var.extra ? 1 : 0
  queue_url      = aws_sqs_queue.orders.id
  redrive_policy = jsonencode({ deadLetterTargetArn = aws_sqs_queue.dead.arn, maxReceiveCount = 1 })
}
resource "aws_lambda_function" "book" {
  timeout = 10
}
resource "aws_lambda_event_source_mapping" "orders" {
  event_source_arn        = aws_sqs_queue.orders.arn
  function_name           = aws_lambda_function.book.arn
  function_response_types = ["ReportBatchItemFailures"]
}
