variable "timeout" {}
resource "aws_sqs_queue" "dead" {
  name                      = "dead"
  message_retention_seconds = 1209600
}
resource "aws_sqs_queue" "orders" {
  name                       = "orders"
  visibility_timeout_seconds = var.timeout * 6
  redrive_policy             = jsonencode({ deadLetterTargetArn = "${aws_sqs_queue.dead.arn}", maxReceiveCount = 5 })
}
resource "aws_lambda_function" "book" {
  function_name = "book"
  timeout       = var.timeout
}
resource "aws_lambda_event_source_mapping" "orders" {
  event_source_arn        = aws_sqs_queue.orders.arn
  function_name           = "book"
  function_response_types = ["ReportBatchItemFailures"]
}
