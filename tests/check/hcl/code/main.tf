# What the templates beside the code in `tests/check/code` say, in Terraform; each case gives the values of the variables.

variable "handler" {
  default = "app.handler"
}

variable "batch_size" {
  default = 1
}

variable "reports" {
  type    = bool
  default = false
}

variable "environment" {
  description = "Names of variables, each with a key of local.values."
  default     = {}
}

variable "next" {
  description = "Arguments of the next queue."
  default     = {}
}

variable "on_instances" {
  default = false
}

variable "loops" {
  default = false
}

locals {
  values = {
    orders_url  = aws_sqs_queue.orders.url
    orders_name = aws_sqs_queue.orders.name
    dead_url    = aws_sqs_queue.dead.id
    next_url    = aws_sqs_queue.next.url
    report_arn  = aws_lambda_function.report.arn
    report_name = aws_lambda_function.report.function_name
  }
}

data "archive_file" "code" {
  type        = "zip"
  source_dir  = "${path.module}/src"
  output_path = "${path.module}/code.zip"
}

resource "aws_sqs_queue" "dead" {
  message_retention_seconds = 1209600
}

resource "aws_sqs_queue" "orders" {
  visibility_timeout_seconds = 180
  redrive_policy             = jsonencode({ deadLetterTargetArn = aws_sqs_queue.dead.arn, maxReceiveCount = 5 })
}

resource "aws_sqs_queue" "next" {
  fifo_queue                  = lookup(var.next, "fifo", false)
  content_based_deduplication = lookup(var.next, "fifo", false)
  max_message_size            = lookup(var.next, "max_message_size", null)
}

resource "aws_lambda_function" "report" {
  function_name = "report"
  handler       = "report.handler"
  runtime       = "python3.12"
  filename      = data.archive_file.code.output_path
  timeout       = 300
}

resource "aws_lambda_function" "work" {
  function_name    = "work"
  handler          = var.handler
  runtime          = "python3.12"
  filename         = data.archive_file.code.output_path
  source_code_hash = data.archive_file.code.output_base64sha256
  timeout          = 30
  environment {
    variables = { for name, key in var.environment : name => local.values[key] }
  }
  dynamic "durable_config" {
    for_each = var.on_instances ? [5400] : []
    content {
      execution_timeout = durable_config.value
    }
  }
  dynamic "capacity_provider_config" {
    for_each = var.on_instances ? [1] : []
    content {
      lambda_managed_instances_capacity_provider_config {
        capacity_provider_arn = "arn:aws:lambda:us-east-1:123456789012:capacity-provider:c"
      }
    }
  }
}

resource "aws_lambda_function_recursion_config" "work" {
  count          = var.loops ? 1 : 0
  function_name  = aws_lambda_function.work.function_name
  recursive_loop = "Allow"
}

resource "aws_lambda_event_source_mapping" "orders" {
  event_source_arn        = aws_sqs_queue.orders.arn
  function_name           = aws_lambda_function.work.arn
  batch_size              = var.batch_size
  function_response_types = var.reports ? ["ReportBatchItemFailures"] : null
}
