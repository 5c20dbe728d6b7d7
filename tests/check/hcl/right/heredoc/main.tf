data "aws_caller_identity" "me" {}
data "aws_region" "here" {}
resource "aws_sns_topic" "news" {}
resource "aws_sqs_queue" "missed" {
  message_retention_seconds = 1209600
}
resource "aws_sqs_queue" "orders" {
  name              = "orders"
  kms_master_key_id = aws_kms_key.queues.arn
  redrive_policy    = <<-EOT
    {
      "deadLetterTargetArn": "${aws_sqs_queue.missed.arn}",
      "maxReceiveCount": ${var.receives}
    }
  EOT
}
variable "receives" {}
resource "aws_sqs_queue_policy" "orders" {
  for_each  = { orders = aws_sqs_queue.orders, missed = aws_sqs_queue.missed }
  queue_url = each.value.id
  policy    = <<POLICY
{
  "Version": "2012-10-17",
  "Statement": [
    {
      "Effect": "Allow",
      "Principal": {"Service": ["sns.amazonaws.com"]},
      "Action": "sqs:SendMessage",
      "Resource": "${each.value.arn}",
      "Condition": {"ArnEquals": {"aws:SourceArn": "${aws_sns_topic.news.arn}"}}
    }
  ]
}
POLICY
}
resource "aws_sns_topic_subscription" "orders" {
  topic_arn            = aws_sns_topic.news.arn
  protocol             = "sqs"
  endpoint             = aws_sqs_queue.orders.arn
  raw_message_delivery = true
  redrive_policy       = "{\"deadLetterTargetArn\": \"${aws_sqs_queue.missed.arn}\"}"
}
resource "aws_kms_key" "queues" {
  policy = templatefile("${path.module}/key.json", { account = data.aws_caller_identity.me.account_id, service = "sns" })
}
