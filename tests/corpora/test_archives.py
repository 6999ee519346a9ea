"""Reading packages that were made to do harm, or that did not arrive whole."""

import pytest

from headscope.corpora import archives
from headscope.corpora.archives import members
from headscope.errors import ResourceError
from tests.corpora.packages import deb, member, tar, tarball, wheel

MAKERS = {".whl": wheel, ".tgz": tarball, ".deb": deb}
EVERY = pytest.mark.parametrize("suffix", list(MAKERS))


@EVERY
def test_only_what_is_wanted_is_read(suffix, tmp_path):
    files = {"p/b.txt": "zwei è", "p/a.txt": "one", "p/setup.py": "raise SystemExit", "q/a.txt": "other"}
    archive = MAKERS[suffix](tmp_path / f"x{suffix}", files)
    assert members(archive, r"p/\w+\.txt") == {"p/a.txt": b"one", "p/b.txt": "zwei è".encode()}
    assert [path.name for path in tmp_path.iterdir()] == [archive.name]


@EVERY
@pytest.mark.parametrize("name", ["../climbed.txt", "/root.txt", "a/../../climbed.txt"])
def test_names_that_lead_out_are_refused(suffix, name, tmp_path):
    archive = MAKERS[suffix](tmp_path / f"x{suffix}", {name: "out"})
    with pytest.raises(ResourceError, match="leads out of it") as caught:
        members(archive, r".*\.txt")
    assert caught.value.exit_code == 5


@pytest.mark.parametrize("suffix", [".tgz", ".deb"])
def test_links_are_refused(suffix, tmp_path):
    archive = MAKERS[suffix](tmp_path / f"x{suffix}", {"b.txt": "b"}, {"a.txt": "/etc/passwd"})
    with pytest.raises(ResourceError, match=r"a\.txt is a link"):
        members(archive, r".*\.txt")
    assert members(archive, r"b\.txt") == {"b.txt": b"b"}


@EVERY
def test_a_bomb_is_refused(suffix, tmp_path, monkeypatch):
    monkeypatch.setattr(archives, "MAX_MEMBER_BYTES", 1000)
    monkeypatch.setattr(archives, "MAX_TOTAL_BYTES", 1800)
    one = MAKERS[suffix](tmp_path / f"one{suffix}", {"a.txt": "a" * 1001})
    many = MAKERS[suffix](tmp_path / f"many{suffix}", {f"{n}.txt": "a" * 900 for n in range(3)})
    for archive in (one, many):
        with pytest.raises(ResourceError, match="larger than any text"):
            members(archive, r".*\.txt")


@EVERY
@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.95])
def test_a_truncated_archive(suffix, share, tmp_path):
    whole = MAKERS[suffix](tmp_path / f"x{suffix}", {f"{n}.txt": str(hash(str(n) * 50)) * 40 for n in range(30)})
    content = whole.read_bytes()
    whole.write_bytes(content[: int(share * len(content))])
    with pytest.raises(ResourceError, match=r"damaged or truncated|not a Debian package"):
        members(whole, r".*\.txt")


@EVERY
def test_something_else_under_that_name(suffix, tmp_path):
    file = tmp_path / f"x{suffix}"
    file.write_bytes(b"<html>not found</html>" * 10)
    with pytest.raises(ResourceError, match=r"damaged or truncated|not a Debian package"):
        members(file, r".*\.txt")


@EVERY
def test_an_archive_of_other_things(suffix, tmp_path):
    archive = MAKERS[suffix](tmp_path / f"x{suffix}", {"a.bin": "a"})
    with pytest.raises(ResourceError, match="none of the files"):
        members(archive, r".*\.txt")


def test_a_debian_package_that_lies_about_sizes(tmp_path):
    lying = member("control.tar.gz", b"x").replace(b"1         `", b"-60       `")
    (tmp_path / "x.deb").write_bytes(b"!<arch>\n" + lying)
    with pytest.raises(ResourceError, match="'-60' bytes long"):
        members(tmp_path / "x.deb", r".*")


def test_zstandard_without_dpkg(tmp_path, monkeypatch):
    monkeypatch.setattr(archives.shutil, "which", lambda name: None)
    (tmp_path / "x.deb").write_bytes(b"!<arch>\n" + member("data.tar.zst", tar({"a.txt": "a"})))
    with pytest.raises(ResourceError, match="zstandard") as caught:
        members(tmp_path / "x.deb", r".*")
    assert "Debian" in caught.value.hint
