/* Expressions of all kinds, in an ugly layout. */
locals {
  minute   = 60
  timeouts = [for t in [1, 2, 3] : t * 10 if t != 2] // 10, 30
  by_name  = { for name, t in zipmap(["book", "mail"], local.timeouts) : upper(name) => { timeout = t } }
  longest  = max(local.timeouts...)
  types    = concat(["ReportBatch${title("item")}Failures"], [])
  big      = local.longest >= 30 && !(local.minute % 7 == 0) ? local.longest * 6 : 0
  deep     = { "a b" = { list = [{ value = -(-5) }] } }
}
resource "aws_sqs_queue" "dead" { message_retention_seconds = 14 * 24 * 60 * local.minute }
resource "aws_sqs_queue" "orders" {
  name                       = format("%s-%d%%", "orders", 5)
  visibility_timeout_seconds = (
    local.big + 0
  )
  redrive_policy = jsonencode({
    deadLetterTargetArn = aws_sqs_queue.dead.arn, # a comment
    maxReceiveCount     = tonumber(local.deep["a b"].list[0].value)
  })
  tags = merge({ a = "b" }, null, { "c" = try(local.none.at.all, "d") })
  lifecycle {
    ignore_changes = [tags]
  }
  timeouts { create = "1m" }
}
resource "aws_lambda_function" "book" {
  function_name = "book-${lower("X")}"
  timeout       = coalesce(null, local.by_name["MAIL"].timeout)
}
resource "aws_lambda_event_source_mapping" "orders" {
  event_source_arn        = aws_sqs_queue.orders.arn
  function_name           = aws_lambda_function.book.arn
  batch_size              = element(local.timeouts, 0)
  function_response_types = local.types
}
