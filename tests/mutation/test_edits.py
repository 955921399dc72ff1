"""The edits of the mutation test fit the sources as they are."""

from flash_attention.backends.cpu import build

from tests.mutation.edits import EDITS


def test_every_edit_has_one_place():
    texts = {edit.file: (build.SOURCES / edit.file).read_text() for edit in EDITS}
    assert [edit for edit in EDITS if texts[edit.file].count(edit.old) != 1] == []
    assert len(set(EDITS)) == len(EDITS)
