variable "filters" {
  type = list(string)
}
variable "concurrency" {
  type    = number
  default = null
}
resource "aws_sqs_queue" "dead" {
  message_retention_seconds = 1209600
}
resource "aws_sqs_queue" "orders" {
  visibility_timeout_seconds = 60
  redrive_policy             = jsonencode({ deadLetterTargetArn = aws_sqs_queue.dead.arn, maxReceiveCount = 5 })
}
resource "aws_lambda_function" "book" {
  timeout                        = 10
  reserved_concurrent_executions = 20
  dynamic "environment" {
    for_each = [{ STAGE = "prod" }]
    iterator = one
    content {
      variables = one.value
    }
  }
  dynamic "dead_letter_config" {
    for_each = []
    content {
      target_arn = aws_sqs_queue.dead.arn
    }
  }
}
resource "aws_lambda_event_source_mapping" "orders" {
  event_source_arn        = aws_sqs_queue.orders.arn
  function_name           = aws_lambda_function.book.arn
  function_response_types = ["ReportBatchItemFailures"]
  dynamic "filter_criteria" {
    for_each = length(var.filters) > 0 ? [1] : []
    content {
      dynamic "filter" {
        for_each = var.filters
        content {
          pattern = filter.value
        }
      }
    }
  }
  dynamic "scaling_config" {
    for_each = var.concurrency == null ? [] : [var.concurrency]
    content {
      maximum_concurrency = scaling_config.value
    }
  }
}
resource "aws_dynamodb_table" "records" {
  name     = "idempotency"
  hash_key = "id"
  dynamic "replica" {
    for_each = var.filters
    content {
      region_name = replica.value
    }
  }
}
