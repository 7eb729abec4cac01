def test_others_keep_half():
    assert False
