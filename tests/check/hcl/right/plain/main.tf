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
  role          = aws_iam_role.runs.arn
  handler       = "index.handler"
  runtime       = "python3.12"
  filename      = "book.zip"
  timeout       = 10
}
resource "aws_iam_role" "runs" {
  assume_role_policy = data.aws_iam_policy_document.lambda.json
}
data "aws_iam_policy_document" "lambda" {
  statement {
    actions = ["sts:AssumeRole"]
    principals {
      type        = "Service"
      identifiers = ["lambda.amazonaws.com"]
    }
  }
}
resource "aws_lambda_event_source_mapping" "orders" {
  event_source_arn        = aws_sqs_queue.orders.arn
  function_name           = aws_lambda_function.book.arn
  function_response_types = ["ReportBatchItemFailures"]
}
