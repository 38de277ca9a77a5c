"""An MCP server with three tools, written with the official package: the arithmetic that a small model lacks.

python examples/mcp/calculator.py                     over stdin and stdout, as a client starts it
python examples/mcp/calculator.py --http              over HTTP, at http://127.0.0.1:8000/mcp
"""

from __future__ import annotations

import sys

from mcp.server.mcpserver import MCPServer

calculator = MCPServer("calculator")


@calculator.tool()
def add(a: int, b: int) -> int:
    """The sum of two numbers."""
    return a + b


@calculator.tool()
def subtract(a: int, b: int) -> int:
    """The first number minus the second."""
    return a - b


@calculator.tool()
def multiply(a: int, b: int) -> int:
    """The product of two numbers."""
    return a * b


if __name__ == "__main__":
    calculator.run(transport="streamable-http" if "--http" in sys.argv else "stdio")
