# The queues were made elsewhere; what they are like is not in these files.
data "aws_sqs_queue" "orders" {
  name = "orders"
}
data "terraform_remote_state" "base" {
  backend = "s3"
}
data "aws_lambda_function" "book" {
  function_name = "book"
}
resource "aws_lambda_function" "mail" {
  timeout = 900
}
resource "aws_lambda_event_source_mapping" "orders" {
  event_source_arn = data.aws_sqs_queue.orders.arn
  function_name    = aws_lambda_function.mail.arn
}
resource "aws_lambda_event_source_mapping" "mails" {
  event_source_arn = data.terraform_remote_state.base.outputs.queue_arn
  function_name    = data.aws_lambda_function.book.arn
}
resource "aws_sqs_queue" "refunds" {
  redrive_policy = jsonencode({
    deadLetterTargetArn = data.terraform_remote_state.base.outputs.dead_arn
    maxReceiveCount     = 5
  })
}
