"""Approval of tool calls by a person: the rules, and the calls of running turns that wait for a decision."""
