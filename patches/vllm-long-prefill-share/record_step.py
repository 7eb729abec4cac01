if long_share is not None:
    long_share.scheduled(self, scheduler_output)
