"""Models in the form of the library transformers: folders of config.json and safetensors, written and read."""
