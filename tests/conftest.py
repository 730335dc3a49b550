"""The suite's fixtures come from one plugin a concern; see tests/fixtures."""

pytest_plugins = [
    "tests.fixtures.fix_server",
    "tests.fixtures.fix_db",
    "tests.fixtures.fix_reference",
    "tests.fixtures.fix_ticker",
    "tests.fixtures.fix_cli",
    "tests.fixtures.fix_client",
    "tests.fixtures.fix_spark",
    "tests.fixtures.fix_example",
    "tests.fixtures.fix_pool",
    "tests.fixtures.fix_connect",
    "tests.fixtures.fix_replicate",
    "tests.fixtures.fix_remote",
    "tests.fixtures.fix_chaos",
    "tests.fixtures.fix_task_worker",
]
