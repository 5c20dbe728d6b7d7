# What each wrong case has. A block of the same name replaces one of these: above the first case of a file, or in a case.

resource "aws_sqs_queue" "dead" {
  message_retention_seconds = 1209600
}

resource "aws_sqs_queue" "orders" {
  visibility_timeout_seconds = 60
  redrive_policy = jsonencode({
    deadLetterTargetArn = aws_sqs_queue.dead.arn
    maxReceiveCount     = 5
  })
}

resource "aws_lambda_function" "book" {
  function_name = "book"
  role          = "arn:aws:iam::111122223333:role/runs"
  handler       = "index.handler"
  runtime       = "python3.12"
  filename      = "book.zip"
  timeout       = 10
}

resource "aws_lambda_event_source_mapping" "orders" {
  event_source_arn        = aws_sqs_queue.orders.arn
  function_name           = aws_lambda_function.book.arn
  function_response_types = ["ReportBatchItemFailures"]
}
