resource "aws_sqs_queue" "dead" {
  message_retention_seconds = 1209600
}
resource "aws_sqs_queue" "orders" {
  visibility_timeout_seconds = 30 # onefold: ignore[DUP002] no run takes longer than 1 s, until=2999-01-01
  redrive_policy = jsonencode({
    deadLetterTargetArn = aws_sqs_queue.dead.arn
    # onefold: ignore[LOS003] a second run is worse than none
    maxReceiveCount = 2
  })
}
resource "aws_lambda_function" "book" {
  timeout = 30
}
resource "aws_lambda_event_source_mapping" "orders" {
  event_source_arn = aws_sqs_queue.orders.arn
  function_name    = aws_lambda_function.book.arn
  batch_size       = 1
}
