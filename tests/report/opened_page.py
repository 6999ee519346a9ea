"""A page in a browser, with everything it asked for or complained about."""

from pathlib import Path
from typing import Any


class Opened:
    """A page, and everything it asked for or complained about."""

    def __init__(self, browser: Any, file: Path, hash_: str = "", **options: Any) -> None:
        self.page = browser.new_page(**{"viewport": {"width": 1280, "height": 800}, **options})
        self.page.set_default_timeout(0)  # it waits for events, never for a clock
        self.requests: list[str] = []
        self.complaints: list[str] = []
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("dialog", lambda dialog: self.complaints.append(dialog.message))
        self.page.goto(file.as_uri() + hash_)

    def js(self, code: str, argument: object = None) -> Any:
        return self.page.evaluate(code, argument)

    def until(self, condition: str, argument: object = None) -> None:
        """Wait until a condition holds, looking at every frame: the page's policy allows no other way."""
        look = f"const look = () => (({condition}) ? done() : requestAnimationFrame(look)); look();"
        self.page.evaluate(f"argument => new Promise(done => {{ {look} }})", argument)

    def heads(self) -> Any:
        """The table of all heads, in view and drawn."""
        place = self.page.locator("#heads")
        place.scroll_into_view_if_needed()
        place.locator("tr[data-row]").first.wait_for()
        return place

    def figure(self, id_: str) -> Any:
        """A figure, in view and drawn."""
        place = self.page.locator(f"#{id_}")
        place.scroll_into_view_if_needed()
        place.locator(".drawing > svg").wait_for()
        return place
