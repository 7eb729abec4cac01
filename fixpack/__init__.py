"""Fixpack: named, anchored fixes for vLLM and vllm-gaudi, applied at image build, all or nothing."""

__version__ = "0.1.0"
