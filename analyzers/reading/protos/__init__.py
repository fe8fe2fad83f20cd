"""Generated protobuf code for the few messages and fields that are read (`make protos` regenerates it)."""
