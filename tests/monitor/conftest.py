"""One browser for all tests of the page: it takes longer to start than most of them to run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.browser import Page, found


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    program = found()
    if program is None:
        pytest.skip("no Chromium on the PATH (or in CHROME)")
    with Page(program, tmp_path_factory.mktemp("browser")) as page:
        yield page
