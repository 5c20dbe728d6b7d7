# Queues of one name in two regions, each with its function.
provider "aws" {
  region = "eu-west-1"
}
provider "aws" {
  alias  = "us-east"
  region = var.other
}
variable "other" {}
module "here" {
  source  = "./queue"
  timeout = 20
}
module "there" {
  source    = "./queue"
  timeout   = 100
  providers = { aws = aws.us-east }
}
resource "aws_sqs_queue" "in_region" {
  name                       = "orders"
  region                     = var.other
  visibility_timeout_seconds = 1
}
