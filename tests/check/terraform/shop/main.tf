terraform {
  required_providers {
    aws = {
      source  = "hashicorp/aws"
      version = "5.100.0"
    }
  }
}

provider "aws" {
  region                      = "eu-west-1"
  access_key                  = "x"
  secret_key                  = "x"
  skip_credentials_validation = true
  skip_requesting_account_id  = true
  skip_metadata_api_check     = true
}

provider "aws" {
  alias                       = "west"
  region                      = "us-west-2"
  access_key                  = "x"
  secret_key                  = "x"
  skip_credentials_validation = true
  skip_requesting_account_id  = true
  skip_metadata_api_check     = true
}

resource "aws_sns_topic" "placed" {
  name = "placed"
}

module "queue" {
  source    = "./modules/q"
  for_each  = toset(["orders", "mails"])
  name      = each.key
  timeout   = 30
  topic_arn = aws_sns_topic.placed.arn
}

resource "aws_sns_topic" "placed_west" {
  provider = aws.west
  name     = "placed"
}

module "west" {
  source    = "./modules/q"
  providers = { aws = aws.west }
  name      = "orders"
  timeout   = 900
  topic_arn = aws_sns_topic.placed_west.arn
}

resource "aws_lambda_function" "ship" {
  function_name = "ship"
  role          = "arn:aws:iam::111122223333:role/x"
  handler       = "index.handler"
  runtime       = "python3.12"
  filename      = "ship.zip"
  timeout       = 30
  environment {
    variables = { QUEUE = module.queue["orders"].arn, A = "b" }
  }
}

resource "aws_lambda_event_source_mapping" "orders" {
  event_source_arn        = module.queue["orders"].arn
  function_name           = aws_lambda_function.ship.function_name
  batch_size              = 5
  function_response_types = ["ReportBatchItemFailures"]
}

resource "aws_lambda_function" "west" {
  provider      = aws.west
  function_name = "ship"
  role          = "arn:aws:iam::111122223333:role/x"
  handler       = "index.handler"
  runtime       = "python3.12"
  filename      = "ship.zip"
  timeout       = 10
}

resource "aws_lambda_event_source_mapping" "west" {
  provider                = aws.west
  event_source_arn        = module.west.arn
  function_name           = aws_lambda_function.west.arn
  function_response_types = ["ReportBatchItemFailures"]
}
