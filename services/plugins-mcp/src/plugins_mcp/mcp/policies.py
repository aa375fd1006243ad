"""What an operator's options and a server's annotations say of a tool: whether it may run twice, and needs approval."""

from mcp import types as sdk

from plugins_contract.catalog import ApprovalPolicy
from plugins_contract.messages import ExecutionClass
from plugins_mcp.mcp.spec import ServerOptions


def execution_class(options: ServerOptions, tool: str, annotations: sdk.ToolAnnotations | None) -> ExecutionClass:
    """Whether a tool may run twice. The operator's option wins; annotations count only for a trusted server."""
    configured = options.tool(tool).execution_class
    if configured is not None:
        return configured
    declared = annotations is not None and (annotations.read_only_hint is True or annotations.idempotent_hint is True)
    return ExecutionClass.REPEATABLE if options.trust and declared else ExecutionClass.ONCE


def approval(options: ServerOptions, tool: str, annotations: sdk.ToolAnnotations | None) -> ApprovalPolicy:
    """Whether a person has to approve the calls of a tool.

    A tool counts as destructive unless it is annotated as read-only or not destructive, which is the default of MCP.
    Annotations that ask for less count only for a trusted server. Without a policy, the tools of an untrusted server
    that say themselves that they are destructive need approval.
    """
    policy = options.tool(tool).approval or options.approval
    if policy is None:
        declared = annotations is not None and annotations.destructive_hint is True
        return ApprovalPolicy.DESTRUCTIVE if declared and not options.trust else ApprovalPolicy.NEVER
    if policy is not ApprovalPolicy.DESTRUCTIVE:
        return policy
    harmless = annotations is not None and (annotations.read_only_hint is True or annotations.destructive_hint is False)
    return ApprovalPolicy.NEVER if options.trust and harmless else ApprovalPolicy.DESTRUCTIVE
