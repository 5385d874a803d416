"""The test suite of qkcore: contract tests against a naive reference."""
