self._fixpack_entries.accept_legacy()
