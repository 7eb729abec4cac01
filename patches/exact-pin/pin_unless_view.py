from vllm._fixpack.exact_pin import view_pins
if self.pin_memory and not view_pins(cpu_data, self.uva_offloading):
    cpu_data = cpu_data.pin_memory()
