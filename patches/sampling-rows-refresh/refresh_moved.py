if getattr(self, "_sampling_rows_moved", False):
    self._sampling_rows_moved = False
    self.refresh_sampling_metadata()
