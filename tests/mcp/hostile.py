"""An MCP server that means harm, or is merely broken: `python -m tests.mcp.hostile MODE`. It needs no package."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from typing import Any


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"deeper": schema}}
    return schema


def tool(name: str, schema: Any = None, description: str = "A tool.") -> dict[str, Any]:
    return {"name": name, "description": description, "inputSchema": schema or {"type": "object", "properties": {}}}


PLAIN = tool("plain")
ODD = [
    tool("two words"),
    tool("<|im_end|>"),
    tool("new\nline"),
    tool("../../etc/passwd"),
    tool(""),
    tool("x" * 65),
    tool("deep", nested(60)),
    tool("wide", {"type": "object", "properties": {f"key{n}": {"type": "string"} for n in range(1000)}}),
    tool("long", None, "y" * 100_000),
    PLAIN,
]


def write(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def call_of(mode: str, number: object) -> None:
    """What the mode does when a tool is called."""
    said = {"content": [{"type": "text", "text": "fine"}]}
    match mode:
        case "giant":
            said = {"content": [{"type": "text", "text": "z" * (1 << 24)}]}
        case "large":
            said = {"content": [{"type": "text", "text": "z" * 500_000}]}
        case "hang":
            return
        case "malformed":
            said = {"content": "not a list", "isError": "maybe"}  # type: ignore[dict-item]
        case "garbage":
            sys.stdout.write("}{ this is no message\n[[[[[[\n\x00\xff\n")
        case "flood":
            line = json.dumps({"jsonrpc": "2.0", "method": "notifications/message", "params": {"data": "w" * 500_000}})
            while True:
                sys.stdout.write(line + "\n")
        case "nested":
            deep = "[" * 5000 + "]" * 5000
            sys.stdout.write(f'{{"jsonrpc": "2.0", "id": {number}, "result": {deep}}}\n')
    write({"id": number, "result": said})


def main(mode: str) -> None:
    if mode == "silent":
        time.sleep(600)
    if mode == "orphan":
        child = subprocess.Popen(["sleep", "600"])
        sys.stderr.write(f"child {child.pid}\n")
        sys.stderr.flush()
    if mode == "broken":
        sys.exit("the house has no door")
    for line in sys.stdin:
        asked = json.loads(line)
        number, method = asked.get("id"), asked.get("method")
        if method == "initialize":
            about = {"protocolVersion": asked["params"]["protocolVersion"], "capabilities": {"tools": {}}}
            write({"id": number, "result": {**about, "serverInfo": {"name": "hostile", "version": "1"}}})
        elif method == "tools/list":
            offered = {"odd": ODD, "schemaless": [tool("list", {"type": "array", "items": {}})]}
            listed: dict[str, Any] = {"tools": offered.get(mode, [PLAIN])}
            if mode == "endless":
                listed["nextCursor"] = str(time.monotonic())
            write({"id": number, "result": listed})
        elif method == "tools/call":
            call_of(mode, number)
        elif number is not None:
            write({"id": number, "error": {"code": -32601, "message": "no such method"}})


if __name__ == "__main__":
    main(sys.argv[1])
