# Variables whose types change their values: attributes that are optional, and texts that stand for other values.
variable "queues" {
  type = map(object({
    timeout = optional(number, 30)
    dead    = optional(bool, true)
    batch   = optional(object({ size = optional(number, 10), window = optional(number) }), {})
  }))
  default = {
    orders = { timeout = "60", unused = 1 }
    mails  = { batch = { window = "1" } }
    prices = { dead = null, batch = null }
  }
}
variable "is_small" {
  type    = bool
  default = "false"
}
variable "factor" {
  type    = string
  default = 6
}
variable "alarms" {
  type    = set(string)
  default = ["orders", "orders", "mails"]
}
resource "aws_sqs_queue" "dead" {
  for_each                  = { for name, one in var.queues : name => one if lookup(one, "dead", false) }
  message_retention_seconds = 1209600
}
resource "aws_sqs_queue" "this" {
  for_each                   = var.queues
  visibility_timeout_seconds = each.value.timeout * (var.factor == "6" ? 6 : 1) + (each.value.batch.window == null ? 0 : each.value.batch.window)
  redrive_policy = contains(keys(each.value), "dead") ? jsonencode({
    deadLetterTargetArn = aws_sqs_queue.dead[each.key].arn
    maxReceiveCount     = var.is_small == false ? 5 : 1
  }) : null
}
resource "aws_lambda_function" "this" {
  for_each      = var.queues
  function_name = each.key
  timeout       = each.value.timeout
}
resource "aws_lambda_event_source_mapping" "this" {
  for_each                           = var.queues
  event_source_arn                   = aws_sqs_queue.this[each.key].arn
  function_name                      = aws_lambda_function.this[each.key].arn
  batch_size                         = each.value.batch.size
  maximum_batching_window_in_seconds = each.value.batch.window
  function_response_types            = ["ReportBatchItemFailures"]
}
