# Whether any of it exists, only a plan says.
variable "enabled" { type = bool }
variable "with_dead_letters" { type = bool }

resource "aws_sqs_queue" "dead" {
  count = var.with_dead_letters ? 1 : 0
}
resource "aws_sqs_queue" "orders" {
  count                      = var.enabled ? 1 : 0
  visibility_timeout_seconds = 30
  redrive_policy = var.with_dead_letters ? jsonencode({
    deadLetterTargetArn = aws_sqs_queue.dead[0].arn
    maxReceiveCount     = 1
  }) : null
}
resource "aws_lambda_function" "book" {
  timeout = 30
}
resource "aws_lambda_event_source_mapping" "orders" {
  count            = var.enabled ? 1 : 0
  event_source_arn = aws_sqs_queue.orders[0].arn
  function_name    = aws_lambda_function.book.arn
}
