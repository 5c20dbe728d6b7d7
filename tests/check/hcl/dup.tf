# finds: DUP001 error
# The provider's default is SQS's: 30 s.
resource "aws_sqs_queue" "orders" {
  redrive_policy = jsonencode({ deadLetterTargetArn = aws_sqs_queue.dead.arn, maxReceiveCount = 5 })
}
resource "aws_lambda_function" "book" {
  function_name = "book"
  timeout       = 31
}
resource "aws_lambda_event_source_mapping" "orders" {
  event_source_arn = aws_sqs_queue.orders.arn
  function_name    = aws_lambda_function.book.arn
  batch_size       = 1
}

# finds: DUP001 error
# Both numbers are made of locals and of a variable with a default.
variable "minutes" {
  type    = number
  default = 1
}
locals {
  timeouts = { book = var.minutes * 90 }
}
resource "aws_lambda_function" "book" {
  timeout = local.timeouts["book"]
}
resource "aws_lambda_event_source_mapping" "orders" {
  event_source_arn = aws_sqs_queue.orders.arn
  function_name    = aws_lambda_function.book.function_name
  batch_size       = 1
}

# finds: DUP002 warning
resource "aws_lambda_function" "book" {
  timeout = 20
}

# finds: DUP002 error
# The queue has the function's own timeout.
resource "aws_sqs_queue" "orders" {
  visibility_timeout_seconds = aws_lambda_function.book.timeout
  redrive_policy             = <<-JSON
    {"deadLetterTargetArn": "${aws_sqs_queue.dead.arn}", "maxReceiveCount": 5}
  JSON
}
resource "aws_lambda_function" "book" {
  timeout = 60
}
resource "aws_lambda_event_source_mapping" "orders" {
  event_source_arn        = aws_sqs_queue.orders.arn
  function_name           = aws_lambda_function.book.arn
  batch_size              = 1
  function_response_types = ["ReportBatchItemFailures"]
}

# finds: DUP002 error, DUP002 error
# A loop makes two queues with their mappings.
locals {
  queues = toset(["orders", "refunds"])
}
resource "aws_sqs_queue" "orders" {
  for_each                   = local.queues
  name                       = each.key
  visibility_timeout_seconds = 30
  redrive_policy             = jsonencode({ deadLetterTargetArn = aws_sqs_queue.dead.arn, maxReceiveCount = 5 })
}
resource "aws_lambda_function" "book" {
  timeout = 30
}
resource "aws_lambda_event_source_mapping" "orders" {
  for_each         = aws_sqs_queue.orders
  event_source_arn = each.value.arn
  function_name    = aws_lambda_function.book.arn
  batch_size       = 1
}

# finds: DUP002 error, DUP003 error
resource "aws_sqs_queue" "orders" {
  redrive_policy = jsonencode({ deadLetterTargetArn = aws_sqs_queue.dead.arn, maxReceiveCount = 5 })
}
resource "aws_lambda_function" "book" {
  timeout = 30
}

# finds: DUP002 error, DUP003 error
# With count, and the index of the only one.
resource "aws_sqs_queue" "orders" {
  count                      = 1
  visibility_timeout_seconds = "30"
  redrive_policy             = jsonencode({ deadLetterTargetArn = aws_sqs_queue.dead.arn, maxReceiveCount = 5 })
}
resource "aws_lambda_function" "book" {
  timeout = 30
}
resource "aws_lambda_event_source_mapping" "orders" {
  event_source_arn        = aws_sqs_queue.orders[0].arn
  function_name           = one(aws_lambda_function.book[*].arn)
  function_response_types = ["ReportBatchItemFailures"]
}

# finds: DUP004 warning
resource "aws_lambda_event_source_mapping" "orders" {
  event_source_arn = aws_sqs_queue.orders.arn
  function_name    = aws_lambda_function.book.arn
}

# finds: DUP004 warning
resource "aws_lambda_event_source_mapping" "orders" {
  event_source_arn        = aws_sqs_queue.orders.arn
  function_name           = aws_lambda_function.book.arn
  batch_size              = min(5, 10)
  function_response_types = []
}

# finds: DUP011 warning
resource "aws_lambda_function" "refund" {
  function_name = "refund"
  timeout       = 10
}
resource "aws_lambda_event_source_mapping" "refunds" {
  event_source_arn        = aws_sqs_queue.orders.arn
  function_name           = aws_lambda_function.refund.arn
  function_response_types = ["ReportBatchItemFailures"]
}

# finds: DUP011 warning
# An alias of one function, and the name of the other.
resource "aws_lambda_function" "refund" {
  function_name = "refund"
  timeout       = 10
}
resource "aws_lambda_alias" "live" {
  name             = "live"
  function_name    = aws_lambda_function.refund.function_name
  function_version = "1"
}
resource "aws_lambda_event_source_mapping" "refunds" {
  event_source_arn        = aws_sqs_queue.orders.arn
  function_name           = aws_lambda_alias.live.arn
  function_response_types = ["ReportBatchItemFailures"]
}

# finds: DUP012 warning
resource "aws_dynamodb_table" "records" {
  name         = "idempotency-records"
  billing_mode = "PAY_PER_REQUEST"
  hash_key     = "key"
  attribute {
    name = "key"
    type = "S"
  }
  replica {
    region_name = "eu-central-1"
  }
}

# finds: DUP012 warning
# Known by Powertools' key and expiry; the regions are in a loop.
resource "aws_dynamodb_table" "table" {
  name         = "t"
  billing_mode = "PAY_PER_REQUEST"
  hash_key     = "id"
  ttl {
    attribute_name = "expiration"
    enabled        = true
  }
  dynamic "replica" {
    for_each = ["eu-central-1", "us-west-2"]
    content {
      region_name = replica.value
    }
  }
}

# finds: DUP015 warning
resource "aws_scheduler_schedule" "nightly" {
  schedule_expression = "cron(0 3 * * ? *)"
  flexible_time_window {
    mode = "OFF"
  }
  target {
    arn      = aws_sqs_queue.orders.arn
    role_arn = "arn:aws:iam::111122223333:role/sends"
    input    = jsonencode({ job = "invoice" })
    dead_letter_config {
      arn = aws_sqs_queue.dead.arn
    }
  }
}

# finds: DUP015 warning
resource "aws_cloudwatch_event_rule" "nightly" {
  name                = "nightly"
  schedule_expression = "rate(1 day)"
}
resource "aws_cloudwatch_event_target" "invoice" {
  rule  = aws_cloudwatch_event_rule.nightly.name
  arn   = aws_lambda_function.invoice.arn
  input = "{\"job\": \"invoice\"}"
}
resource "aws_lambda_function" "invoice" {
  function_name = "invoice"
  dead_letter_config {
    target_arn = aws_sqs_queue.dead.arn
  }
}
