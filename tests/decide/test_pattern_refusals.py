"""Every pattern that is none, with the reason it is told; the words are AWS's or aws/event-ruler's where they are known."""

from __future__ import annotations

import pytest

from onefold.errors import UsageError
from onefold.events.patterns import compile_pattern, refuse_operators


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("[]", "Filter is not an object"),
        ('"text"', "Filter is not an object"),
        ("1", "Filter is not an object"),
        ("null", "Filter is not an object"),
        ('{"a":42}', '"a" must be an object or an array'),
        ('{"a":"x"}', '"a" must be an object or an array'),
        ('{"a":[]}', "Empty arrays are not allowed"),
        ('{"a":[[1]]}', "Match value must be String, number, true, false, or null"),
        ('{"a":[{"EXISTS":true}]}', "Unrecognized match type EXISTS"),
        ('{"a":[{"strange":1}]}', "Unrecognized match type strange"),
        ('{"a":[{"prefix":"x","suffix":"y"}]}', "Only one key allowed in match expression"),
        ('{"a":[{"prefix":1}]}', "prefix match pattern must be a string"),
        ('{"a":[{"suffix":["x"]}]}', "suffix match pattern must be a string"),
        ('{"a":[{"equals-ignore-case":1}]}', "equals-ignore-case match pattern must be a string"),
        ('{"a":[{"wildcard":"a**b"}]}', "Consecutive wildcard characters at pos 2"),
        ('{"a":[{"wildcard":"a\\\\b"}]}', "Invalid escape character at pos 2"),
        ('{"a":[{"wildcard":1}]}', "wildcard match pattern must be a string"),
        ('{"a":[{"anything-but":null}]}', "Value of anything-but must be an array or single string/number value."),
        (
            '{"a":[{"anything-but":[1,"x"]}]}',
            "Inside anything but list, either all values are number or string, mixed type is not supported",
        ),
        ('{"a":[{"anything-but":{"prefix":""}}]}', "Null prefix/suffix not allowed"),
        ('{"a":[{"anything-but":{"numeric":[">",1]}}]}', "Unsupported anything-but pattern: numeric"),
        ('{"a":[{"numeric":5}]}', "Value of numeric must be an array."),
        ('{"a":[{"numeric":[">",0,">",0]}]}', "Bad numeric range operator: >"),
        ('{"a":[{"numeric":[">","0"]}]}', "Value of > must be numeric"),
        ('{"a":[{"exists":"yes"}]}', "exists match pattern must be either true or false."),
        ('{"a":[{"cidr":"10.0.0.0"}]}', "Malformed CIDR, one '/' required"),
        ('{"a":[{"cidr":"x/8"}]}', "Nonstandard IP address: x"),
        ('{"a":[{"cidr":"10.0.0.0/33"}]}', "Nonstandard IP address: 10.0.0.0"),
        ('{"a":[{"cidr":"10.0.0.0/x"}]}', "Malformed CIDR, mask bits must be an integer"),
        ('{"a":[{"cidr":1}]}', "prefix match pattern must be a string"),
        ("{}", "Empty objects are not allowed"),
        ('{"a":{}}', "Empty objects are not allowed"),
        ('{"a":[{}]}', "Only one key allowed in match expression"),
        ('{"a":null}', '"a" must be an object or an array'),
        ('{"a":[{"prefix":{"suffix":"x"}}]}', "Unsupported prefix pattern: suffix"),
        (
            '{"a":[{"wildcard":"a*b*c*d*e*f*g"}]}',
            (
                "Rule is too complex - try using fewer wildcard characters or fewer repeating character sequences after a "
                "wildcard character"
            ),
        ),
        ('{"a":[{"wildcard":"a\\\\"}]}', "Invalid escape character at pos 1"),
        ('{"a":[{"anything-but":[]}]}', "Empty arrays are not allowed"),
        ('{"a":[{"anything-but":true}]}', "Value of anything-but must be an array or single string/number value."),
        ('{"a":[{"anything-but":{}}]}', "Only one key allowed in match expression"),
        ('{"a":[{"anything-but":{"suffix":[]}}]}', "Empty arrays are not allowed"),
        (
            '{"a":[{"anything-but":{"wildcard":[1]}}]}',
            "Inside anything-but/wildcard list, number|start|null|boolean is not supported.",
        ),
        ('{"a":[{"numeric":[]}]}', "Invalid member in numeric match: ]"),
        ('{"a":[{"numeric":[">"]}]}', "Value of > must be numeric"),
        ('{"a":[{"numeric":["!",1]}]}', "Unrecognized numeric range operator: !"),
        ('{"a":[{"numeric":[1,2]}]}', "Invalid member in numeric match: 1"),
        ('{"a":[{"numeric":["=",1,"<",2]}]}', "Too many elements in numeric expression"),
        ('{"a":[{"numeric":[">",2,"<",1]}]}', "Bottom must be less than top"),
        ('{"a":[{"numeric":[">",1,"<",2,"<",3]}]}', "Too many terms in numeric range expression"),
        ('{"$or":[]}', "Empty arrays are not allowed"),
        ('{"$or":[{"a":[1]}]}', "Unrecognized match type a"),
        ('{"$or":[{"a":[1]},{}]}', "Empty objects are not allowed"),
        (
            '{"f0":{"$or":[{"a":[1]},{"b":[1]}]},"f1":{"$or":[{"a":[1]},{"b":[1]}]},"f2":{"$or":[{"a":[1]},{"b":[1]}]},"f3":{"$or":[{"a":[1]},{"b":[1]}]},"f4":{"$or":[{"a":[1]},{"b":[1]}]},"f5":{"$or":[{"a":[1]},{"b":[1]}]},"f6":{"$or":[{"a":[1]},{"b":[1]}]},"f7":{"$or":[{"a":[1]},{"b":[1]}]},"f8":{"$or":[{"a":[1]},{"b":[1]}]},"f9":{"$or":[{"a":[1]},{"b":[1]}]}}',
            "Rule is too complex: $or expands to more than 1,000 alternatives",
        ),
        ('{"a": ["x"', "Filter is not an object"),
        ("", "Filter is not an object"),
    ],
)
def test_each_is_refused_with_its_reason(pattern: str, reason: str) -> None:
    with pytest.raises(UsageError) as caught:
        compile_pattern(pattern)
    assert caught.value.what == f"Event pattern is not valid. Reason: {reason}"
    assert caught.value.todo


@pytest.mark.parametrize(
    ("pattern", "told"),
    [
        ('{"body": {"a": [{"wildcard": "x*"}]}}', "wildcard"),
        ('{"body": {"a": ["x", {"anything-but": {"suffix": "x"}}]}}', "anything-but/suffix"),
        ('{"$or": [{"body": {"a": [{"wildcard": "x*"}]}}, {"body": ["y"]}]}', "wildcard"),
    ],
)
def test_what_a_service_does_not_know_is_refused_by_name(pattern: str, told: str) -> None:
    with pytest.raises(UsageError) as caught:
        refuse_operators(pattern, ("wildcard",), "EventBridge Pipes")
    assert caught.value.what.endswith(f"Unrecognized match type {told}")
    assert "EventBridge Pipes does not know this operator." in caught.value.meaning


@pytest.mark.parametrize("pattern", ['{"wildcard": ["x"]}', '{"a": [{"anything-but": ["x"]}, {"prefix": "x"}]}'])
def test_fields_and_other_operators_are_not(pattern: str) -> None:
    refuse_operators(pattern, ("wildcard",), "EventBridge Pipes")
    assert compile_pattern(pattern).root.fields
