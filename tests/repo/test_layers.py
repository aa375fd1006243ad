"""Documents name the parts and layers as they are."""

from tests.layers import documents, layers, table


def test_the_documents_have_the_parts_and_layers_as_they_are() -> None:
    for path, content in documents().items():
        assert path.read_text() == content, "run: python -m tests.layers"
        assert content.count("`python -m tests.layers`: -->") == 1, path


def test_each_part_says_what_it_does() -> None:
    assert len(layers("dialog_engine")) > 5
    for package in ("dialog_engine", "plugins_mcp", "plugins_contract", "callstream_runtime"):
        assert " |  |" not in table(package)
