variable "legacy" {
  type    = bool
  default = true
}
resource "aws_sqs_queue" "legacy" {
  count                      = var.legacy ? 1 : 0
  visibility_timeout_seconds = 30
}
resource "aws_lambda_function" "legacy" {
  count   = var.legacy ? 1 : 0
  timeout = 30
}
resource "aws_lambda_event_source_mapping" "legacy" {
  count            = length(aws_sqs_queue.legacy)
  event_source_arn = aws_sqs_queue.legacy[count.index].arn
  function_name    = aws_lambda_function.legacy[count.index].arn
}
resource "aws_sqs_queue" "kept" {}
