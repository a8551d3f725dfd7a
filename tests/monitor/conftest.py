"""One browser for all tests of the page: it takes longer to start than most of them to run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.browser import Page, found_or_skip


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with Page(found_or_skip(), tmp_path_factory.mktemp("browser")) as page:
        yield page
