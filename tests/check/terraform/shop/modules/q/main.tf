variable "name" { type = string }
variable "timeout" { type = number }
variable "topic_arn" { type = string }

resource "aws_sqs_queue" "dead" {
  name                      = "${var.name}-dead"
  message_retention_seconds = 86400
}

# The queue.
resource "aws_sqs_queue" "this" {
  name                       = var.name
  visibility_timeout_seconds = var.timeout
  redrive_policy = jsonencode({
    deadLetterTargetArn = aws_sqs_queue.dead.arn
    maxReceiveCount     = 2
  })
}

data "aws_iam_policy_document" "topic" {
  statement {
    actions   = ["sqs:SendMessage"]
    resources = [aws_sqs_queue.this.arn]
    principals {
      type        = "Service"
      identifiers = ["sns.amazonaws.com"]
    }
    condition {
      test     = "ArnEquals"
      variable = "aws:SourceArn"
      values   = [var.topic_arn]
    }
  }
}

resource "aws_sqs_queue_policy" "topic" {
  queue_url = aws_sqs_queue.this.id
  policy    = data.aws_iam_policy_document.topic.json
}

resource "aws_sns_topic_subscription" "this" {
  topic_arn = var.topic_arn
  protocol  = "sqs"
  endpoint  = aws_sqs_queue.this.arn
}

output "arn" { value = aws_sqs_queue.this.arn }
