resource "aws_sqs_queue" "dead" {
  message_retention_seconds = 60
}
resource "aws_sqs_queue" "orders" {
  visibility_timeout_seconds = 30
  redrive_policy             = jsonencode({ deadLetterTargetArn = aws_sqs_queue.dead.arn, maxReceiveCount = 5 })
}
resource "aws_lambda_function" "book" {
  timeout = 30
}
resource "aws_lambda_event_source_mapping" "orders" {
  event_source_arn = aws_sqs_queue.orders.arn
  function_name    = aws_lambda_function.book.arn
  batch_size       = 1
  scaling_config {
    maximum_concurrency = 1
  }
}
