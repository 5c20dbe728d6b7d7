output "arns" { value = { queue = aws_sqs_queue.this.arn } }
output "dead_name" { value = module.dead.queue.name }
