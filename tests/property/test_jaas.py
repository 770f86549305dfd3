"""JAAS configurations are read as Kafka reads them, and errors do not repeat passwords."""

import string

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakehead.broker.security.sasl.jaas import PLAIN_MODULE, JaasError, parse_jaas
from tests.support.repetitions import examples

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
keys = st.text(string.ascii_letters + "_", min_size=1, max_size=10)
values = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\n"), max_size=20)


def quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


@settings(max_examples=examples(200), deadline=None)
@given(st.dictionaries(keys, values, max_size=5), st.sampled_from(["required", "Sufficient"]))
def test_every_value_in_quotes_comes_back(options: dict[str, str], flag: str) -> None:
    text = " ".join(f"{key}={quoted(value)}" for key, value in options.items())
    found = parse_jaas(f"{PLAIN} {flag} {text};")
    assert found.name == PLAIN_MODULE
    assert found.options == options


def test_words_comments_and_escapes_of_java_are_read() -> None:
    found = parse_jaas(
        f"""
        /* users */ {PLAIN} // of this listener
          required
          username='admin' password="a\\"b\\\\c\\tn\\101"
          user_alice=word-with_$signs user_b="=;,"; // end
        """
    )
    assert found.options == {
        "username": "admin",
        "password": 'a"b\\c\tnA',
        "user_alice": "word-with_$signs",
        "user_b": "=;,",
    }


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "no login module"),
        ("// nothing", "no login module"),
        (PLAIN, "no control flag"),
        (f"{PLAIN} always;", "no control flag"),
        (f"{PLAIN} required", "do not end with a semicolon"),
        (f'{PLAIN} required password="s3cret"', "do not end with a semicolon"),
        (f"{PLAIN} required password=12345;", "needs quotes"),
        (f"{PLAIN} required password s3cret;", "not all written key=value"),
        (f"{PLAIN} required password=;", "has no value"),
        (f'{PLAIN} required password="s3cret;', "does not end"),
        (f'{PLAIN} required password="s3\ncret";', "does not end"),
        (f"{PLAIN} required; {PLAIN} required;", "several login modules"),
    ],
)
def test_the_error_names_the_problem_and_no_value(text: str, problem: str) -> None:
    with pytest.raises(JaasError, match=problem) as found:
        parse_jaas(text)
    assert "s3cret" not in str(found.value)
    assert "12345" not in str(found.value)


@settings(max_examples=examples(300), deadline=None)
@given(st.text(alphabet="ab=;\"'\\/*\n \t.-1required", max_size=60) | st.text(max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        found = parse_jaas(text)
    except JaasError:
        return
    assert found.name
    assert "secret" not in repr(found)
