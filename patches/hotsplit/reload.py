from vllm._fixpack.hotsplit_guards import refuse_reload

refuse_reload(model)
