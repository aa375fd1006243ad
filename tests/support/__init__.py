"""What tests share: real servers, real processes, waiting by condition."""
