module "dead" {
  source = "../dead"
  name   = "${var.name}-dead"
}
resource "aws_sqs_queue" "this" {
  name                       = var.name
  visibility_timeout_seconds = max(var.timeout * 6, 30)
  redrive_policy             = jsonencode({ deadLetterTargetArn = module.dead.queue.arn, maxReceiveCount = var.receives })
}
