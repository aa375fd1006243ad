"""The whole product on one machine, for `make run`: an embedded Valkey, demo programs, one worker, one engine."""
