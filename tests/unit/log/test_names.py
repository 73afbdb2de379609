import pytest

from penstock.log.names import INDEX, LOG, folders_above, offset_of, segment_stem, swap_path, swap_range


def test_names_sort_as_offsets_do() -> None:
    stems = [segment_stem("/d", offset) for offset in (0, 9, 10, 2**40, 2**63 - 1)]
    assert stems == sorted(stems)


def test_an_offset_is_read_from_its_own_kind_of_name_only() -> None:
    assert offset_of("00000000000000000042.log", LOG) == 42
    for name in (
        "42.log",
        "00000000000000000042.index",
        "0000000000000000004x.log",
        "00000000000000000042.log.deleted",
        "",
    ):
        assert offset_of(name, LOG) is None
    assert offset_of("00000000000000000042.index", INDEX) == 42


def test_a_swap_file_says_what_it_replaces() -> None:
    path = swap_path("/d", 5, 900)
    assert swap_range(path.removeprefix("/d/")) == (5, 900)
    for name in ("00000000000000000042.log", "a-b.swap", "00000000000000000042-00000000000000000050.log"):
        assert swap_range(name) is None


@pytest.mark.parametrize(("directory", "above"), [("/d/t/x/0", ["/d", "/d/t", "/d/t/x"]), ("/a/b", ["/a"]), ("/a", [])])
def test_the_folders_above_are_listed_from_the_top(directory, above) -> None:
    assert folders_above(directory) == above
