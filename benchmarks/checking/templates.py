"""Templates of a given size in which nothing is wrong: queues with functions, dead-letter queues and alarms.

Never here: timing. Invariant: CloudFormation's limits are kept (500 resources, 1 MB), so that a linter reads all of it.
"""

from __future__ import annotations

from pathlib import Path

_SERVICE = """\
  Dead{n}:
    Type: AWS::SQS::Queue
    Properties:
      QueueName: dead-{n}
      MessageRetentionPeriod: 1209600
  Orders{n}:
    Type: AWS::SQS::Queue
    Properties:
      QueueName: orders-{n}
      VisibilityTimeout: 180
      MessageRetentionPeriod: 345600
      RedrivePolicy:
        deadLetterTargetArn: !GetAtt Dead{n}.Arn
        maxReceiveCount: 5
  Ship{n}:
    Type: AWS::Lambda::Function
    Properties:
      FunctionName: ship-{n}
      Runtime: python3.13
      Handler: ship.handler
      Timeout: 30
      MemorySize: 256
      Role: !Sub arn:aws:iam::${{AWS::AccountId}}:role/ship-{n}
      Environment:
        Variables:
          STAGE: !Ref Stage
          QUEUE: !Ref Orders{n}
          TABLE: orders-{n}
          LOG_LEVEL: INFO
      Code:
        S3Bucket: !Ref Bucket
        S3Key: ship-{n}.zip
  ShipOrders{n}:
    Type: AWS::Lambda::EventSourceMapping
    Properties:
      EventSourceArn: !GetAtt Orders{n}.Arn
      FunctionName: !GetAtt Ship{n}.Arn
      BatchSize: 1
      FunctionResponseTypes:
        - ReportBatchItemFailures
  DeadLetters{n}:
    Type: AWS::CloudWatch::Alarm
    Properties:
      Namespace: AWS/SQS
      MetricName: ApproximateNumberOfMessagesVisible
      Dimensions:
        - Name: QueueName
          Value: !GetAtt Dead{n}.QueueName
      Statistic: Maximum
      Period: 60
      EvaluationPeriods: 1
      Threshold: 0
      ComparisonOperator: GreaterThanThreshold
      TreatMissingData: notBreaching
      AlarmActions: [!Ref People]
      OKActions: [!Ref People]
"""
_HEAD = """\
AWSTemplateFormatVersion: "2010-09-09"
Parameters:
  Stage:
    Type: String
    Default: prod
  Bucket:
    Type: String
  People:
    Type: String
Resources:
"""


def template(services: int) -> str:
    """A template of so many services, 53 lines and 5 resources each."""
    return _HEAD + "".join(_SERVICE.format(n=number) for number in range(services))


def of_lines(lines: int) -> str:
    """A template of about so many lines."""
    return template(lines // _SERVICE.count("\n"))


def write_many(folder: Path, count: int) -> None:
    """So many templates of 2 services each."""
    for number in range(count):
        (folder / f"template-{number}.yaml").write_text(template(2), encoding="utf-8")
