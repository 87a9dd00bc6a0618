"""The protocol types serve a gateway too: they load without an engine."""

import subprocess
import sys


def test_protocol_types_import_no_engine_and_no_web_framework():
    code = (
        "import sys, argosy.server.protocol.chat, argosy.server.protocol.completions, argosy.server.protocol.errors,"
        " argosy.server.protocol.models, argosy.server.protocol.tokenize;"
        "print([m for m in sys.modules if m.startswith(('argosy.engine', 'argosy.models', 'fastapi', 'torch'))])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
