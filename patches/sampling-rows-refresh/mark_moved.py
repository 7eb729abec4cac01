self._sampling_rows_moved = True
