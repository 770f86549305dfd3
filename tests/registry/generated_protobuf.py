"""Protobuf files by a seed, proto2 and proto3, most of them damaged."""

import random

SCALARS = ("int32", "int64", "string", "bytes", "bool", "double", "sint32", "fixed64", "uint32")


def protobuf_schema(rng: random.Random) -> str:
    """Return a text."""
    is_three = rng.random() < 0.7
    lines = ['syntax = "proto3";' if is_three else rng.choice(('syntax = "proto2";', ""))]
    if rng.random() < 0.5:
        lines.append("package a.b;")
    if rng.random() < 0.3:
        lines.append('import "google/protobuf/timestamp.proto";')
        lines.append(f"message Timed {{ {_label(is_three)}google.protobuf.Timestamp at = 1; }}")
    if rng.random() < 0.3:
        lines.append('option java_package = "x.y";')
    lines += _message(rng, "M", 2, is_three)
    if rng.random() < 0.3:
        first = 0 if is_three or rng.random() < 0.7 else 5
        lines.append(f"enum E {{ E_A = {first}; E_B = 1; }}")
    if rng.random() < 0.2:
        lines.append("service S { rpc Call (M) returns (stream M); }")
    text = "\n".join(lines) + "\n"
    return _damaged(rng, text) if rng.random() < 0.5 else text


def _label(is_three: bool) -> str:
    return "" if is_three else "optional "


def _message(rng: random.Random, name: str, depth: int, is_three: bool) -> list[str]:
    lines, label = [f"message {name} {{"], _label(is_three)
    for number in range(1, rng.randrange(2, 6)):
        kind = rng.choice(SCALARS)
        match rng.randrange(8):
            case 0:
                lines.append(f"repeated {kind} f{number} = {number};")
            case 1:
                lines.append(f"map<string, {kind}> f{number} = {number};")
            case 2:
                lines.append(f"oneof o{number} {{ {kind} f{number} = {number}; }}")
            case 3:
                lines.append(f"optional {kind} f{number} = {number};")
            case 4 if not is_three:
                lines.append(f"required int32 f{number} = {number} [default = 5];")
            case 5 if not is_three:
                lines.append(f"repeated group G{number} = {number} {{ optional int32 x = 1; }}")
            case 6:
                lines.append(f"{label}{kind} f{number} = {number} [deprecated = true];")
            case _:
                lines.append(f"{label}{kind} f{number} = {number};")
    if rng.random() < 0.3:
        lines.append(
            rng.choice(("reserved 20, 22 to 30;", 'reserved "gone";', "reserved 40 to max;"))
        )
    if not is_three and rng.random() < 0.2:
        lines.append("extensions 100 to 199;")
    if depth and rng.random() < 0.4:
        lines += _message(rng, f"In{depth}", depth - 1, is_three)
    return [*lines, "}"]


def _damaged(rng: random.Random, text: str) -> str:
    found = rng.choice(
        (
            ("= 2;", "= 1;"),
            ("= 1;", "= 0;"),
            ("= 1;", "= -1;"),
            ("= 1;", "= 19500;"),
            ("= 1;", "= 536870912;"),
            ("f2", "f1"),
            ("message M", "message 9M"),
            ("message M {", "message M "),
            ("}", ""),
            (";", ""),
            ("int32", "Nowhere"),
            ("string", "strin"),
            ('"proto3"', '"proto4"'),
            ("map<string", "map<double"),
            ("map<string", "repeated map<string"),
            ("package a.b;", "package a.b; package c;"),
            ("reserved 20", "reserved 1"),
            ("E_A = 0", "E_A = 1"),
            ("optional", "required"),
            ("deprecated = true", "deprecated = maybe"),
            ("deprecated", "made_up"),
            ("timestamp.proto", "nowhere.proto"),
            ("option java_package", "option (custom)"),
            ("stream M", "Nowhere"),
            ("100 to 199", "2 to 1"),
            ("{", "{ message M { } message M { } "),
        )
    )
    return text.replace(*found, 1)
