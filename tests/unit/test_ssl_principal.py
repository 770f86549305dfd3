"""Names of clients from their certificates, by Kafka's rules."""

import pytest
from cryptography import x509
from cryptography.x509.oid import NameOID
from hypothesis import given
from hypothesis import strategies as st

from lakehead.broker.security.ssl_principal import (
    NoMatchingRule,
    SslPrincipalMapper,
    distinguished_name,
)
from lakehead.storage.errors import SettingsError


@pytest.mark.parametrize(
    ("rules", "subject", "name"),
    [
        # The rules and names of Kafka's SslPrincipalMapperTest.
        ("DEFAULT", "CN=kafka-server1, OU=KAFKA", "CN=kafka-server1, OU=KAFKA"),
        (
            (
                "RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/L,"
                "RULE:^CN=(.*?),OU=(.*?),O=(.*?),L=(.*?),ST=(.*?),C=(.*?)$/$1@$2/L,"
                "RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/U,DEFAULT"
            ),
            "CN=Duke,OU=ServiceUsers,O=Org,C=US",
            "duke",
        ),
        (
            (
                "RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/,"
                "RULE:^CN=(.*?), *OU=(.*?), *O=(.*?), *L=(.*?), *ST=(.*?), *C=(.*?)$/$1@$2/L,"
                "DEFAULT"
            ),
            "CN=duke, OU=JavaSoft, O=Sun Microsystems, L=X, ST=Y, C=US",
            "duke@javasoft",
        ),
        ("RULE:^cn=(.*?),ou=(.*?)$/$1@$2/U", "cn=duke,ou=sme", "DUKE@SME"),
        ("RULE:^cn=(.*?),ou=(.*?)$/$1@$4/", "cn=duke,ou=sme", "duke@$4"),
        ("RULE:^cn=(.*?),ou=(.*?)$/$12/", "cn=duke,ou=sme", "duke2"),
        (r"RULE:^cn=(.*?),ou=(.*?)$/$1\/$2/", "cn=duke,ou=sme", "duke/sme"),
        ("RULE:^cn=(.*)$/$0!/", "cn=x", "cn=x!"),
        ("RULE:.*/x/", "abc", "xx"),  # Java replaces the empty end, too
        ("", "cn=x", None),
        (" , DEFAULT", "cn=x", "cn=x"),
        ("RULE:^a$/b/", "c", None),
    ],
)
def test_a_subject_becomes_the_name_that_kafka_makes(
    rules: str, subject: str, name: str | None
) -> None:
    mapper = SslPrincipalMapper(rules)
    if name is None:
        with pytest.raises(NoMatchingRule):
            mapper.name(subject)
    else:
        assert mapper.name(subject) == name


@pytest.mark.parametrize(
    "rules",
    [
        "default",
        "DEFAUL",
        "DEFAULT/L",
        "DEFAULT/",
        "RULE:CN=(.*?),OU=ServiceUsers.*/$1",
        "rule:^CN=(.*?),OU=ServiceUsers.*$/$1/",
        "RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/L/U",
        "RULE:^CN=(.*?),OU=ServiceUsers.*$/L",
        "RULE:^CN=(.*?),OU=ServiceUsers.*$/U",
        "RULE:^CN=(.*?),OU=ServiceUsers.*$/LU",
        "RULE:(/x/",
    ],
)
def test_what_kafka_refuses_is_refused(rules: str) -> None:
    """Most of them are of Kafka's SslPrincipalMapperTest.testInvalidRules."""
    with pytest.raises(SettingsError) as error:
        SslPrincipalMapper(rules)
    assert "\n" not in str(error.value)


@given(st.text(max_size=60))
def test_any_text_makes_rules_or_one_error(rules: str) -> None:
    try:
        SslPrincipalMapper(rules)
    except SettingsError:
        pass


def test_a_subject_is_written_as_java_writes_it() -> None:
    name = x509.Name(
        [
            x509.NameAttribute(NameOID.COUNTRY_NAME, "US"),
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, 'A, "B"; <C>+\\'),
            x509.NameAttribute(NameOID.EMAIL_ADDRESS, "a@b"),
            x509.NameAttribute(NameOID.COMMON_NAME, " #x "),
        ]
    )
    assert distinguished_name(name) == (
        'CN=\\ #x\\ ,1.2.840.113549.1.9.1=#1603614062,O=A\\, \\"B\\"\\; \\<C\\>\\+\\\\,C=US'
    )
