#!/bin/sh
# If no model is configured, use the scripted one at DEMO_MODEL_URL, and say so on the chat page.
set -eu
model=""
for name in openai_api_key openai_base_url anthropic_api_key anthropic_base_url azure_openai_endpoint bedrock_model \
    vertex_model openrouter_api_key; do
    value="$(printenv "$(echo "$name" | tr '[:lower:]' '[:upper:]')" || true)"
    if [ -n "$value" ] || [ -e "/run/secrets/$name" ]; then model="$name"; fi
done
if [ -n "${DEMO_MODEL_URL:-}" ] && [ -z "$model" ]; then
    export OPENAI_BASE_URL="$DEMO_MODEL_URL" OPENAI_MODEL=demo-scripted MODEL_SCRIPTED=true
    export MODEL_LABEL="Demo model (scripted, not an AI)"
fi
exec "$@"
