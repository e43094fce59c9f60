"""Draw docs/live.png, the picture of README: python scripts/live_picture.py

It is the first screen of the page in which a model learns, in a Chromium that is installed, when
the model of seed 0 has learned and runs without the causal mask.
"""

import shutil
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

from toytrans.live_pages.page import learning_page

PICTURE = Path(__file__).parents[1] / "docs/live.png"


def main() -> None:
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "learn.html"
        path.write_text(learning_page())
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.goto(f"{path.as_uri()}#run=-causal&exp=3")
        page.wait_for_selector("body[data-learning=no][data-counted]", timeout=600_000)
        page.screenshot(path=PICTURE)
        browser.close()


if __name__ == "__main__":
    main()
