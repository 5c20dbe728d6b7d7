"""What rules look at: every kind of resource with its values known, absent or not to be told, and what queues are for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from onefold.check.collect_template import collect, collect_template
from onefold.check.facts import (
    AlarmFacts,
    BusFacts,
    Document,
    InvokeConfigFacts,
    KeyFacts,
    RoleFacts,
    RuleFacts,
    ScheduleFacts,
    Span,
    StateMachineFacts,
    SubscriberFacts,
    TableFacts,
    TopicFacts,
    TopicSubscriptionFacts,
    Unresolved,
)
from onefold.check.model import Model, model_of

TEMPLATE = """\
Transform: AWS::Serverless-2016-10-31
Parameters:
  Dead: {Type: String}
  Watch: {Type: String, Default: "false"}
Conditions:
  Watched: !Equals [!Ref Watch, "true"]
Globals:
  Function: {Runtime: python3.12, Handler: index.handler, InlineCode: "def handler(event, context): pass", Timeout: 7}
Resources:
  Orders:
    Type: AWS::SQS::Queue
    Properties:
      KmsMasterKeyId: !Ref Alias
      Tags: [{Key: "onefold:held", Value: Unknown}]
      RedrivePolicy: {deadLetterTargetArn: !GetAtt Graves.Arn, maxReceiveCount: 5}
  Graves: {Type: AWS::SQS::Queue}
  Unknown: {Type: AWS::SQS::Queue}
  Missed: {Type: AWS::SQS::Queue}
  Nightly:
    Type: AWS::Scheduler::Schedule
    Properties:
      GroupName: !Ref Group
      ScheduleExpression: cron(0 3 * * ? *)
      FlexibleTimeWindow: {Mode: "OFF"}
      Target:
        Arn: !GetAtt Orders.Arn
        RoleArn: !GetAtt Sends.Arn
        DeadLetterConfig: {Arn: !GetAtt Missed.Arn}
        RetryPolicy: {MaximumRetryAttempts: 3}
        Input: '{"day": "<aws.scheduler.scheduled-time>"}'
  Group: {Type: AWS::Scheduler::ScheduleGroup, Properties: {Name: nights}}
  Sends:
    Type: AWS::IAM::Role
    Properties: {Policies: [{PolicyName: p, PolicyDocument: {Statement: [{Action: "sqs:SendMessage"}]}}]}
  More: {Type: AWS::IAM::Policy, Properties: {Roles: [!Ref Sends], PolicyName: m, PolicyDocument: {Statement: []}}}
  Placed:
    Type: AWS::Events::Rule
    Properties:
      EventBusName: !Ref Bus
      EventPattern: {source: [shop]}
      Targets:
        - Id: queue
          Arn: !GetAtt Orders.Arn
          DeadLetterConfig: !If [Watched, {Arn: !GetAtt Missed.Arn}, !Ref "AWS::NoValue"]
        - {Id: other, Arn: !Ref Dead, DeadLetterConfig: {Arn: !Ref Dead}}
  Bus: {Type: AWS::Events::EventBus, Properties: {Name: shop}}
  Bus2:
    Type: AWS::EventsV2::EventBus
    Properties: {Name: next, StorageConfiguration: {RetentionPeriodInDays: 7}}
  Follows:
    Type: AWS::EventsV2::Subscriber
    Properties:
      Name: follows
      EventBusArn: !Ref Bus2
      Type: FIFO
      InvokeConfiguration: {TargetArn: !GetAtt Orders.Arn, RoleArn: !GetAtt Sends.Arn}
  News: {Type: AWS::SNS::Topic, Properties: {Subscription: [{Protocol: sqs, Endpoint: !GetAtt Orders.Arn}]}}
  Told:
    Type: AWS::SNS::Subscription
    Properties:
      TopicArn: !Ref News
      Protocol: lambda
      Endpoint: !Ref Live
      RedrivePolicy: {deadLetterTargetArn: !GetAtt Missed.Arn}
  Live: {Type: AWS::Lambda::Alias, Properties: {Name: live, FunctionName: !Ref Book, FunctionVersion: "1"}}
  Flow:
    Type: AWS::StepFunctions::StateMachine
    Properties:
      DefinitionString: !Sub '{"StartAt": "A", "States": {"A": {"Type": "Task", "Resource": "${Dead}", "End": true}}}'
  Records:
    Type: AWS::DynamoDB::GlobalTable
    Properties: {Replicas: [{Region: eu-west-1}, {Region: us-east-1}], TimeToLiveSpecification: {AttributeName: until}}
  Full:
    Type: AWS::CloudWatch::Alarm
    Condition: Watched
    Properties:
      Namespace: AWS/SQS
      MetricName: ApproximateNumberOfMessagesVisible
      Dimensions: [{Name: QueueName, Value: !GetAtt Graves.QueueName}]
      Statistic: Maximum
      AlarmActions: [!If [Watched, !Ref News, !Ref "AWS::NoValue"]]
  Key: {Type: AWS::KMS::Key, Properties: {KeyPolicy: {Statement: []}}}
  Alias: {Type: AWS::KMS::Alias, Properties: {AliasName: alias/shop, TargetKeyId: !Ref Key}}
  Book:
    Type: AWS::Serverless::Function
    Properties:
      DurableConfig: {ExecutionTimeout: 3600}
      DeadLetterQueue: {Type: SQS, TargetArn: !GetAtt Missed.Arn}
      EventInvokeConfig: {DestinationConfig: {OnFailure: {Type: SQS}}}
      Events:
        Weekly:
          Type: Schedule
          Properties: {Schedule: rate(7 days), Enabled: false, DeadLetterConfig: {Type: SQS}}
        Daily: {Type: ScheduleV2, Properties: {ScheduleExpression: rate(1 day)}}
        Orders: {Type: SQS, Properties: {Queue: !GetAtt Orders.Arn}}
        Topic: {Type: SNS, Properties: {Topic: !Ref News, SqsSubscription: true}}
  Later:
    Type: AWS::Lambda::EventInvokeConfig
    Properties:
      FunctionName: !Ref Book
      Qualifier: live
      DestinationConfig: {OnFailure: {Destination: !GetAtt Missed.Arn}}
  Inner:
    Type: AWS::CloudFormation::Stack
    Properties: {TemplateURL: https://example.com/t, Parameters: {Queue: !Sub "${Graves.QueueName}"}}
"""


def model(tmp_path: Path, text: str = TEMPLATE) -> Model:
    file = tmp_path / "template.yaml"
    file.write_text(text)
    return model_of(collect_template(file, parameters={}, account="123456789012", region="eu-west-1", everything=True))


def line_of(text: str) -> int:
    return next(number for number, line in enumerate(TEMPLATE.splitlines(), 1) if text in line)


def test_a_schedule_has_its_target_its_retries_and_its_dead_letter_queue(tmp_path: Path) -> None:
    found = model(tmp_path)
    nightly, daily = found.all(ScheduleFacts)
    assert nightly.arn == "arn:aws:scheduler:eu-west-1:123456789012:schedule/nights/Nightly"
    assert nightly.group.value == "nights"
    retries = nightly.target.retries_max
    assert (retries.value, retries.written, retries.source.start_line) == (3, True, line_of("MaximumRetryAttempts"))
    age = nightly.target.age_max_s
    assert (age.value, age.written, age.path) == (
        86_400,
        False,
        "Resources.Nightly.Properties.Target.RetryPolicy.MaximumEventAgeInSeconds",
    )
    queue = found.queue_at(nightly.target.dead_letter_arn.value)
    assert queue is not None
    assert queue.name == "Missed"
    assert daily.id == "BookDaily"
    assert daily.group.value == "default"
    assert daily.target.dead_letter_arn.is_absent
    function = found.function_at(daily.target.arn.value)
    assert function is not None
    assert function.name == "Book"


def test_a_value_is_known_or_absent_or_cannot_be_told(tmp_path: Path) -> None:
    placed, weekly = model(tmp_path).all(RuleFacts)
    assert placed.arn == "arn:aws:events:eu-west-1:123456789012:rule/shop/Placed"
    assert placed.targets is not None
    queue, other = placed.targets
    assert (queue.retries_max.value, queue.retries_max.written) == (185, False)
    assert not queue.dead_letter_arn.is_absent
    assert queue.dead_letter_arn.why.startswith("it is left out under the conditions")
    assert other.dead_letter_arn.why == "parameter Dead has no default and was not given"
    assert (weekly.state.value, weekly.expression.value) == ("DISABLED", "rate(7 days)")
    assert weekly.targets is not None
    assert weekly.targets[0].makes_queue


def test_buses_of_both_generations_topics_and_their_subscriptions(tmp_path: Path) -> None:
    found = model(tmp_path)
    assert [(one.generation, one.retention_days.value) for one in found.all(BusFacts)] == [(1, None), (2, 7)]
    [follows] = found.all(SubscriberFacts)
    assert (follows.retries_max.value, follows.age_max_s.value, follows.kind.value) == (5, 300, "FIFO")
    assert follows.on_failure.is_absent
    [news] = found.all(TopicFacts)
    inline, told, sam = found.all(TopicSubscriptionFacts)
    assert inline.topic_arn.value == told.topic_arn.value == sam.topic_arn.value == news.arn
    assert told.endpoint.value == "arn:aws:lambda:eu-west-1:123456789012:function:Book:live"
    assert sam.allowed


def test_state_machines_tables_alarms_keys_roles_and_destinations(tmp_path: Path) -> None:
    found = model(tmp_path)
    [flow] = found.all(StateMachineFacts)
    assert flow.definition.value is not None
    assert flow.definition.value["States"]["A"]["Resource"] == "\N{REPLACEMENT CHARACTER}"
    [records] = found.all(TableFacts)
    assert (records.regions.value, records.ttl_attribute.value) == (["eu-west-1", "us-east-1"], "until")
    assert found.all(AlarmFacts) == []
    [full] = found.possible(AlarmFacts)
    assert full.exists is False
    assert full.metrics is not None
    assert full.metrics[0].dimensions["QueueName"].value == "Graves"
    assert full.missing.value == "missing"
    assert full.actions.value is None
    [key] = found.all(KeyFacts)
    assert {"Key", "alias/shop"} < key.names
    [orders] = [one for one in found.queues if one.name == "Orders"]
    assert orders.facts.attributes["KmsMasterKeyId"] in key.names
    [sends] = found.all(RoleFacts)
    assert len(sends.policies) == 2
    assert not sends.has_others
    [later] = found.all(InvokeConfigFacts)
    assert later.on_failure.value == "arn:aws:sqs:eu-west-1:123456789012:Missed"
    [book] = found.functions
    assert book.facts.durable_s.value == 3600
    assert book.facts.on_failure.why == "SAM makes it"
    assert (book.timeout_s.value, book.timeout_s.path) == (7, "Globals.Function.Timeout")
    assert found.unseen == ()
    assert found.nested == ("Inner",)


def test_what_a_queue_is_for_is_inferred(tmp_path: Path) -> None:
    found = model(tmp_path)
    assert {one.name: sorted(one.roles) for one in found.queues} == {
        "Orders": ["source", "target"],
        "Graves": ["dead letters"],
        "Unknown": ["held"],
        "Missed": ["failed deliveries"],
    }
    [orders] = [one for one in found.queues if one.name == "Orders"]
    assert {(one.kind, one.name, one.principal) for one in found.senders_of(orders)} == {
        ("schedule", "Nightly", ""), ("rule", "Placed", "events.amazonaws.com"), ("subscriber", "Follows", ""),
        ("topic", "News", "sns.amazonaws.com"),
    }  # fmt: skip


def test_what_belongs_to_a_queue_may_be_in_a_nested_stack_that_knows_it(tmp_path: Path) -> None:
    found = model(tmp_path)
    assert found.may_be_elsewhere("Graves", named=False)
    assert not found.may_be_elsewhere("Orders", named=False)
    assert found.may_be_elsewhere("Orders", named=True)
    with_macro = TEMPLATE.replace(
        "Transform: AWS::Serverless-2016-10-31", "Transform: [Macro, AWS::Serverless-2016-10-31]"
    )
    assert model(tmp_path, with_macro).may_be_elsewhere("Orders", named=False)


def test_an_arn_of_another_place_is_not_of_a_queue_that_is_here_when_both_are_known() -> None:
    def read(exact: bool, arn: str) -> Model:
        resources = {
            "orders": {"Type": "AWS::SQS::Queue", "Properties": {"QueueName": "orders"}},
            "mapping": {"Type": "AWS::Lambda::EventSourceMapping", "Properties": {"EventSourceArn": arn}},
            "rule": {"Type": "AWS::Events::Rule", "Properties": {"Targets": [{"Id": "a", "Arn": arn}]}},
        }
        document = Document("aws://eu-west-1", {"Resources": resources}, {}, exact=exact)
        return model_of(collect(document, parameters={}, account="111122223333", region="eu-west-1", everything=True))

    there = "arn:aws:sqs:us-east-1:111122223333:orders"
    for exact, arn, is_linked in [
        (True, there, False), (True, "arn:aws:sqs:eu-west-1:444455556666:orders", False), (False, there, True),
        (True, "arn:aws:sqs:eu-west-1:111122223333:orders", True),
    ]:  # fmt: skip
        found = read(exact, arn)
        [orders] = found.queues
        assert (found.mappings[0].queue is orders) is is_linked
        assert orders.roles == ({"source", "target"} if is_linked else set())
        assert len(found.senders_of(orders)) == int(is_linked)


def test_another_input_gives_the_same_model_with_its_own_ids_files_and_gaps() -> None:
    def resource(kind: str, **properties: Any) -> dict[str, Any]:
        return {"Type": kind, "Properties": properties}

    queue, dead, mapping = (
        "module.shop.aws_sqs_queue.orders",
        "aws_sqs_queue.dead[0]",
        "aws_lambda_event_source_mapping.m",
    )
    resources = {
        queue: resource(
            "AWS::SQS::Queue", QueueName="orders", VisibilityTimeout=Unresolved("it is known after apply"),
            RedrivePolicy={"deadLetterTargetArn": {"Fn::GetAtt": [dead, "Arn"]}, "maxReceiveCount": 4},
        ),
        dead: resource("AWS::SQS::Queue", QueueName="orders-dead"),
        mapping: resource("AWS::Lambda::EventSourceMapping", EventSourceArn={"Fn::GetAtt": [queue, "Arn"]}, BatchSize=7),
    }  # fmt: skip
    at = ("Resources", queue, "Properties", "RedrivePolicy", "maxReceiveCount")
    document = Document(
        "plan.json", {"Resources": resources}, {}, {at: Span(12, 30, 12, 31, "queues.tf")}, missing=("a module",)
    )
    found = model_of(collect(document, parameters={}, account="210987654321", region="eu-west-1", everything=True))
    orders = next(one for one in found.queues if one.name == queue)
    assert orders.dead_letters is not None
    assert orders.dead_letters.name == dead
    assert (orders.visibility_s.value, orders.visibility_s.why) == (None, "it is known after apply")
    assert orders.receives_max is not None
    assert str(orders.receives_max.source) == "queues.tf:12:30"
    assert orders.receives_max.span is not None
    [received] = found.mappings
    assert received.queue is orders
    assert received.batch_size.written
    assert str(received.batch_size.source) == "plan.json:1:1"
    assert found.unseen == ("a module",)
