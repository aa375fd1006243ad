EXHAUSTIVE: dict[str, str] = {}
def is_exhaustive(test: str) -> bool:
    return False
