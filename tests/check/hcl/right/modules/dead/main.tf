variable "name" {}
resource "aws_sqs_queue" "this" {
  name                      = var.name
  message_retention_seconds = 1209600
}
output "queue" { value = aws_sqs_queue.this }
