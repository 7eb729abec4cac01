should_offload = self._fixpack_entries.note(f"{prefix}{name}", should_offload)
