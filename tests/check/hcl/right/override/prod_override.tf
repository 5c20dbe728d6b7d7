resource "aws_sqs_queue" "dead" {
  message_retention_seconds = 1209600
}
resource "aws_sqs_queue" "orders" {
  visibility_timeout_seconds = 180
}
resource "aws_lambda_event_source_mapping" "orders" {
  scaling_config {
    maximum_concurrency = 2
  }
}
