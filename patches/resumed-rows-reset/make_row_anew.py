# A request that was preempted and resumed for this very step has new blocks: its row is made anew.
unscheduled_req_ids |= scheduler_output.scheduled_cached_reqs.resumed_req_ids & cached_req_ids
