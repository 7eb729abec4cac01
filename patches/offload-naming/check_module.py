self._fixpack_entries.end_of_module()
