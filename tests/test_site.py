"""The built site: complete, valid, self-contained, every link alive, and nothing of the registry's text is markup."""

from __future__ import annotations

import itertools
import posixpath
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import html5lib
import pytest
from kit import REPO, UPSTREAM, Done, Kit, write

from fixpack import cache, cli, docs_facts, registry
from fixpack.site import build, links
from fixpack.site.render import parse, slug, to_html

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

#: Text that means something in HTML, Markdown, Jinja or YAML.
HOSTILE = (
    "<script>alert(1)</script> & \"q\" 'a' {{ 7*7 }} {% raw %} | `x` <!-- --> ![i](https://evil.example/p.png) </pre> "
    "`</code><script>alert(3)</script>` `<img src=x> [j](javascript:alert(4)) docs/../up.md"
)


@pytest.fixture
def kit(tmp_path: Path) -> Kit:
    made = Kit(tmp_path)
    tests = {f"tests/fixes/test_{each}.py": "x = 1\n" for each in ("rows_counted", "order_kept", "core_guard")}
    tests |= {f"tests/fixes/test_{each}.py": "x = 1\n" for each in ("long_share", "wide_log")}
    hand = {
        "docs/refusals.md": "# What it refuses\n",
        "README.md": "# Demo\n\n[docs](docs/README.md) [licence](LICENSE)\n",
    }
    write(made.registry, {**tests, **hand, "LICENSE": "none\n"})
    return made


def fill_cache(kit: Kit, *refs: str) -> None:
    """Put invented releases into the (sealed) source cache."""
    loaded = registry.load(str(kit.registry))
    for ref in refs:
        write(Path(cache.tree_dir(loaded.releases[ref])), UPSTREAM[ref])


def run(kit: Kit, capsys: pytest.CaptureFixture[str], folder: Path) -> Done:
    code = cli.main(["docs", "--registry", str(kit.registry), "--html", str(folder)])
    told = capsys.readouterr()
    return Done(code, told.out, told.err)


def built(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): path.read_text(encoding="utf-8")
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


class Text(HTMLParser):
    """What a reader sees, and the tags."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.text, self.tags = "", set[str]()
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)

    def handle_data(self, data: str) -> None:
        self.text += data


# -- the site of this repository --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def site() -> dict[str, bytes]:
    """Without whole diffs: the sources need not be here."""
    return build.build(docs_facts.read_facts(registry.load(str(REPO))))


def test_every_fix_and_profile_has_a_page(site: dict[str, bytes]) -> None:
    loaded = registry.load(str(REPO))
    wanted = {f"fixes/{name}.html" for name in loaded.fixes} | {f"profiles/{name}.html" for name in loaded.profiles}
    wanted |= {"index.html", "quick-start.html", "refusals.html", "threat-model.html", "reference.html", "models.html"}
    wanted |= {f"source/{fix.proof.test}.html" for fix in loaded.fixes.values()}
    assert wanted - site.keys() == set()


def test_pages_are_valid_html(site: dict[str, bytes]) -> None:
    for path, data in site.items():
        if path.endswith(".html"):
            html5lib.HTMLParser(strict=True).parse(data.decode())


def test_pages_have_landmarks_and_headings_in_order(site: dict[str, bytes]) -> None:
    for path, data in site.items():
        if path.endswith(".html"):
            page = data.decode()
            tags = re.findall(r"<(h[1-6]|main|header|footer|nav)\b", page)
            assert [tags.count(each) for each in ("main", "header", "footer", "h1")] == [1, 1, 1, 1], path
            levels = [int(tag[1]) for tag in tags if re.fullmatch("h[1-6]", tag)]
            assert all(after <= before + 1 for before, after in itertools.pairwise(levels)), path
            assert re.search(r'<html lang="en">', page)
            assert "<table" not in re.sub(r'<div class="scroll"[^>]*>\n<table', "", page), (
                f"{path}: a table that cannot scroll"
            )
            assert len(re.findall(r"<title>[^<]+</title>", page)) == 1


def test_nothing_comes_from_elsewhere(site: dict[str, bytes]) -> None:
    assert links.dead_site_links(site) == []
    assert {path.rpartition(".")[2] for path in site} == {"html", "css", "png", "svg"}
    for path, data in site.items():
        text = data.decode(errors="replace")
        if path.endswith(".html"):
            tags = Text(text).tags
            assert not tags & {"script", "iframe", "object", "embed", "video", "audio", "form", "base"}, path
            assert not re.search(r"<[^>]*\sstyle=|<[^>]*\son[a-z]+=", text), path
        elif path.endswith(".css"):
            assert not re.search(r"url\(|@import|@font-face|https?:", text)


def test_pictures_are_copied(site: dict[str, bytes]) -> None:
    """Each picture that a page shows lies in the site, byte for byte, and none is fetched from elsewhere."""
    shown = {
        posixpath.normpath(posixpath.join(posixpath.dirname(path), found))
        for path, data in site.items()
        if path.endswith(".html")
        for found in re.findall(r'<img[^>]*\ssrc="([^"]*)"', data.decode())
    }
    assert shown == {"hotsplit.png", "long-prefill-share.svg"}
    for name in shown:
        assert site[name] == (REPO / "docs" / name).read_bytes()


def test_colours_have_contrast() -> None:
    """WCAG's 4.5 for every colour of text on every ground that it stands on, light and dark."""
    sheet = (Path(build.THEME) / build.STYLE).read_text(encoding="utf-8")
    light, dark = (dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{6});", part)) for part in sheet.split("@media", 2)[:2])
    assert light.keys() == dark.keys()
    for colours in (light, dark):
        assert contrast(colours["text"], colours["page"]) >= 7
        texts = ("text", "soft", "link", "accent", "keyword", "string", "comment", "number", "hunk", "added", "removed")
        for name in texts:
            for ground in ("page", "raised"):
                assert contrast(colours[name], colours[ground]) >= 4.5, (name, ground, colours[name])
        for name in ("added", "removed"):
            assert contrast(colours[name], colours[f"{name}-page"]) >= 4.5, name


def contrast(one: str, two: str) -> float:
    def luminance(colour: str) -> float:
        parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        r, g, b = (part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
        return 0.2126 * r + 0.7152 * g + 0.0722 * b

    high, low = sorted((luminance(one), luminance(two)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium")
@pytest.mark.parametrize(
    "page", ["index.html", "profiles/gaudi2-v0.26.0.html", "fixes/prompt-order.html", "reference.html"]
)
@pytest.mark.parametrize("wide", [390, 1280])
def test_no_page_scrolls_sideways(page: str, wide: int, site: dict[str, bytes], tmp_path: Path) -> None:
    """In the frame the document is not wider than the frame; tables and code scroll in their own boxes."""
    build.write(site, str(tmp_path / "web"))
    probe = (
        f'<!doctype html><p id="w"></p><iframe id="f" src="web/{page}" '
        f'style="width:{wide}px;height:800px;border:0"></iframe>'
        "<script>f.onload=()=>{const d=f.contentDocument.documentElement;"
        "w.textContent='width '+d.scrollWidth+' of '+d.clientWidth;document.title='done'}</script>"
    )
    (tmp_path / "probe.html").write_text(probe)
    command = [str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--allow-file-access-from-files"]
    command += [f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=10000", "--dump-dom"]
    done = subprocess.run(
        [*command, (tmp_path / "probe.html").as_uri()], capture_output=True, text=True, timeout=120, check=False
    )
    found = re.search(r">width ([0-9]+) of ([0-9]+)<", done.stdout)  # or less by a scroll bar
    assert found, done.stdout[-500:] + done.stderr[-500:]
    assert found[1] == found[2]
    assert wide - 30 < int(found[2]) <= wide


# -- an invented one --------------------------------------------------------------------------------------------------


def test_whole_diffs_where_the_source_is(kit: Kit, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    fill_cache(kit, "demo-plugin@v1.0.0", "demo-plugin@v2.0.0")
    done = run(kit, capsys, tmp_path / "web")
    assert done.code == 0, done.err
    assert done.out.splitlines()[0].startswith("demo-core@v1.0.0 is not in the source cache")
    pages = built(tmp_path / "web")
    page = Text(pages["fixes/rows-counted.html"]).text
    assert "demo-plugin v1.0.0, v2.0.0" in page
    assert (
        "--- a/demo_plugin/runner.py\n+++ b/demo_plugin/runner.py\n@@ -12,7 +12,11 @@\n"
        '     def step(self, rows):\n         """Run one step."""\n         first = rows[0]\n'
        "-        count = len(rows) - 1\n+        # fixpack begin rows-counted r1: step-count\n"
    ) in page
    assert "Show new file demo_plugin/_fixpack/rows.py, 7 lines" in page
    core = Text(pages["fixes/core-guard.html"]).text
    assert "Not shown for demo-core@v1.0.0: not in the source cache" in core
    assert "return list(requests)" not in core
    assert "+assert schedule([1]) == [1]" in core  # the short form


def test_the_committed_pages_hold_no_upstream_code(kit: Kit, capsys: pytest.CaptureFixture[str]) -> None:
    fill_cache(kit, *UPSTREAM)
    assert cli.main(["docs", "--registry", str(kit.registry)]) == 0
    capsys.readouterr()
    page = (kit.registry / "docs/fixes/rows-counted.md").read_text()
    assert "count = len(rows) - 1" in page  # the anchor
    assert "order = sorted(rows)" not in page


def test_a_cached_source_that_is_not_the_pinned_one(
    kit: Kit, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    fill_cache(kit, *UPSTREAM)
    loaded = registry.load(str(kit.registry))
    path = Path(cache.tree_dir(loaded.releases["demo-plugin@v1.0.0"])) / "demo_plugin/batch.py"
    path.write_text(path.read_text() + "\n")
    done = run(kit, capsys, tmp_path / "web")
    assert (done.code, set(done.codes), (tmp_path / "web").exists()) == (1, {"base_sha_unknown"}, False)


def test_the_same_input_gives_the_same_bytes(kit: Kit, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    fill_cache(kit, *UPSTREAM)
    for name in ("one", "two"):
        assert run(kit, capsys, tmp_path / name).code == 0
    assert built(tmp_path / "one") == built(tmp_path / "two")


def test_hostile_text_stays_text(kit: Kit, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    quoted = HOSTILE.replace("'", "''")
    kit.edit("fixes/order-kept.yaml", "symptom: rows are lost", f"symptom: '{quoted}'")
    kit.edit("fixes/order-kept.yaml", "title: keep the order of rows", f"title: '{quoted}'")
    kit.edit("fixes/order-kept.yaml", '"a row was lost"', "'</code><script>alert(2)</script>'")
    kit.edit("profiles/bench-v1.0.0.yaml", "hardware: a test bench", f"hardware: '{quoted}'")
    kit.edit("patches/order-kept/keep.py", "order = list(rows)", 'order = list(rows)  # </code></pre><script>"&amp;')
    done = run(kit, capsys, tmp_path / "web")
    assert done.code == 0, done.err
    shown = HOSTILE
    for code in ("x", "</code><script>alert(3)</script>"):  # the last backquote has no partner
        shown = shown.replace(f"`{code}`", code)
    pages = built(tmp_path / "web")
    for path, page in pages.items():
        if path.endswith(".html"):
            assert not Text(page).tags & {"script", "img"}, path
            html5lib.HTMLParser(strict=True).parse(page)
    for path in ("fixes/order-kept.html", "fixes/index.html", "profiles/bench-v1.0.0.html", "index.html"):
        assert shown in Text(pages[path]).text, path
    for path in ("fixes/order-kept.html", "source/patches/order-kept/keep.py.html"):
        assert 'list(rows)  # </code></pre><script>"&amp;' in Text(pages[path]).text, path
    assert "49" not in Text(pages["index.html"]).text


def test_a_dead_link_stops_the_build(kit: Kit, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    write(kit.registry, {"docs/refusals.md": "# A\n\n[a](gone.md) [b](README.md#nowhere) [c](https://exa mple/)\n"})
    done = run(kit, capsys, tmp_path / "web")
    assert (done.code, done.codes, (tmp_path / "web").exists()) == (1, ["link_dead", "link_dead"], False)
    assert "error: refusals.html: gone.md: there is no such file" in done.err
    assert "error: refusals.html: index.html#nowhere: index.html has no id 'nowhere'" in done.err


def test_a_folder_of_somebody_else(kit: Kit, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    write(tmp_path / "web", {"notes.txt": "mine\n"})
    done = run(kit, capsys, tmp_path / "web")
    assert (done.code, done.codes) == (2, ["folder_not_empty"])
    assert built(tmp_path / "web") == {"notes.txt": "mine\n"}


def test_a_second_build_removes_what_is_gone(kit: Kit, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    site = tmp_path / "web"
    run(kit, capsys, site)
    write(site, {"notes.txt": "mine\n"})
    assert (site / "source/LICENSE.html").exists()
    kit.edit("README.md", " [licence](LICENSE)", "")
    assert run(kit, capsys, site).code == 0
    assert not (site / "source/LICENSE.html").exists()
    assert (site / "notes.txt").read_text() == "mine\n"
    manifest = (site / build.MANIFEST).read_text().splitlines()
    assert sorted([*manifest, build.MANIFEST, "notes.txt"]) == sorted(built(site))


def test_a_manifest_cannot_name_what_lies_outside(kit: Kit, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    write(tmp_path, {"outside.txt": "mine\n", f"web/{build.MANIFEST}": "../outside.txt\n/etc/hostname\n"})
    assert run(kit, capsys, tmp_path / "web").code == 0
    assert (tmp_path / "outside.txt").exists()


@pytest.mark.parametrize("name", ["fixes", "index.html", build.MANIFEST, "old/gone.html"])
def test_a_link_out_of_the_folder(name: str, kit: Kit, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Neither a linked folder nor a linked file in the site is written through, or removed from."""
    site, outside = tmp_path / "web", {"gone.html": "mine\n", "index.html": "mine\n", build.MANIFEST: "gone.html\n"}
    write(tmp_path / "outside", outside)
    write(site, {build.MANIFEST: "old/gone.html\n"})
    link = site / ("old" if name == "old/gone.html" else name)
    link.unlink(missing_ok=True)
    link.symlink_to(tmp_path / "outside" / (name if "." in link.name else ""))
    done = run(kit, capsys, site)
    assert (done.code, set(done.codes)) == (2, {"folder_not_empty"})
    assert "a symbolic link leads elsewhere" in done.err
    assert built(tmp_path / "outside") == outside
    assert not (site / "style.css").exists()


def test_the_folder_itself_may_be_a_link(kit: Kit, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "web").symlink_to("real")
    for _ in range(2):
        assert run(kit, capsys, tmp_path / "web").code == 0
    assert (tmp_path / "real/index.html").exists()


# -- parts ------------------------------------------------------------------------------------------------------------


def test_headings_have_the_ids_of_github() -> None:
    document = parse("# What it *refuses*, and `why`\n\n## a_b - C/D\n\n## Same\n\n## Same\n")
    assert [each.id for each in document.headings] == ["what-it-refuses-and-why", "a_b---cd", "same", "same-1"]
    assert slug("Überschrift 2!") == "überschrift-2"


def test_raw_html_is_text() -> None:
    document = parse("<!-- Made by `fixpack docs` -->\n\n# A\n\n<b onclick=x>b</b>\n\n<script>1</script>\n")
    page = to_html(document, lambda link: link)
    assert Text(page).tags == {"h1", "p"}
    assert "Made by" not in page


SITE = {
    "id twice": ('<p id="a"></p><p id="a"></p>', "the id 'a' occurs twice"),
    "a script": ('<script src="https://example.org/x.js"></script>', "would be fetched from elsewhere"),
    "a font": ('<link href="//example.org/x.woff" rel="preload">', "would be fetched from elsewhere"),
    "a picture": ('<img src="gone.png" alt="">', "gone.png: there is no such file"),
    "a script link": ('<a href="javascript:alert(1)">x</a>', "not an http address"),
    "out of the site": ('<a href="../up.html">x</a>', "there is no such file"),
}


@pytest.mark.parametrize("case", SITE)
def test_what_the_site_check_finds(case: str) -> None:
    body, said = SITE[case]
    found = links.dead_site_links({"index.html": f"<!doctype html><title>x</title>{body}".encode()})
    assert len(found) == 1
    assert said in found[0].message


def test_a_good_site_has_no_problem() -> None:
    files = {"index.html": b'<a href="a/b.html#c">x</a><a href="https://example.org/a?b=c#d">y</a>'}
    files["a/b.html"] = b'<p id="c"><a href="../index.html">x</a><a href="#c">y</a></p>'
    assert links.dead_site_links(files) == []
