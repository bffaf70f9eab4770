"""Markdown tables as values, so that tests check a value in a column and not the text of a row."""


def parsed(text: str) -> list[dict[str, str]]:
    """Return the rows of all tables of a text; each maps the heads of its table to its values, without backticks."""
    rows: list[dict[str, str]] = []
    heads: list[str] = []
    for line in text.splitlines():
        if not line.startswith("|"):
            heads = []
            continue
        values = [value.strip().replace("`", "") for value in line.strip("|").split("|")]
        if not heads:
            heads = values
        elif set(line) - set("|- "):
            rows.append(dict(zip(heads, values, strict=True)))
    return rows


def only(text: str, **wanted: str) -> dict[str, str]:
    """Return the one row whose columns have the wanted values."""
    (row,) = [row for row in parsed(text) if all(row.get(head) == value for head, value in wanted.items())]
    return row
