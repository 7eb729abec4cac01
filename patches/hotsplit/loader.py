from vllm._fixpack.hotsplit_guards import refuse_loader

refuse_loader(_LOAD_FORMAT_TO_MODEL_LOADER[load_format])
