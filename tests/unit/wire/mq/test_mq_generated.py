import importlib.util
import re
import subprocess
import sys
from pathlib import Path

from grpc_tools import protoc

from penstock.wire.mq import mq_generated

ROOT = Path(__file__).resolve().parents[4]


def tool():
    spec = importlib.util.spec_from_file_location("generate_protos", ROOT / "tools" / "generate_protos.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def without_version(text: str) -> str:
    """Another protoc may be installed: what it writes about itself may differ."""
    text = re.sub(r"# Protobuf Python Version: .*", "", text)
    return re.sub(r"ValidateProtobufRuntimeVersion\([^)]*\)", "", text)


def test_the_code_in_the_tree_is_what_the_proto_gives() -> None:
    generator = tool()
    for name, text in generator.generate().items():
        in_tree = (ROOT / name).read_text(encoding="utf-8")
        assert without_version(in_tree) == without_version(text), f"{name} is old: run tools/generate_protos.py"


def test_a_program_can_load_its_own_code_of_the_same_package_beside_the_broker(tmp_path) -> None:
    """In the common pool of descriptors a second file of these names would be refused."""
    assert protoc.main(["protoc", f"-I{ROOT / 'proto'}", f"--python_out={tmp_path}", "mq.proto"]) == 0
    program = (
        "import mq_pb2; from penstock.wire.mq import mq_generated;"
        "sent = mq_pb2.PublishRequest(topic='t').SerializeToString();"
        "print(mq_generated.PublishRequest.FromString(sent).topic)"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("t\n", "")


def test_the_numbers_of_the_original_fields_are_fixed_and_ours_start_at_ten() -> None:
    original = {
        "CreateTopicRequest": ["name"],
        "CreateTopicResponse": ["success"],
        "PublishRequest": ["topic", "payload", "headers"],
        "PublishResponse": ["message_id"],
        "SubscribeRequest": ["topic", "consumer_group", "consumer_id"],
        "Message": ["id", "topic", "payload", "timestamp", "headers"],
        "CommitOffsetRequest": ["topic", "consumer_group", "offset"],
        "CommitOffsetResponse": ["success"],
    }
    for name, fields in original.items():
        numbers = {field.name: field.number for field in mq_generated.DESCRIPTOR.message_types_by_name[name].fields}
        assert [numbers.pop(field) for field in fields] == list(range(1, len(fields) + 1)), name
        assert all(number >= 10 for number in numbers.values()), name
